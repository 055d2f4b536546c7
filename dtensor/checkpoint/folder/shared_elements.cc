#include "dtensor/checkpoint/folder/shared_elements.h"

#include <algorithm>
#include <memory>

#include "dtensor/checkpoint/folder/piece_file.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int64_t kPart = 8 << 20;

std::string PathOf(const std::string& folder, int64_t step, const std::string& file) {
  return JoinPath(JoinPath(folder, StepName(step)), file);
}

// Whether `function` has found nothing broken.
template <class Function>
bool IsWell(const Function& function) {
  try {
    function();
    return true;
  } catch (const Error& error) {
    const bool is_broken =
        error.code() == absl::StatusCode::kDataLoss || error.code() == absl::StatusCode::kNotFound;
    if (!is_broken) throw;
    return false;
  }
}

uint32_t CrcOf(FileReader& file, int64_t offset, int64_t num_bytes, std::vector<char>* buffer) {
  uint32_t crc = 0;
  for (int64_t done = 0; done < num_bytes; done += std::ssize(*buffer)) {
    buffer->resize(static_cast<size_t>(std::min(kPart, num_bytes - done)));
    ReadAll(file, offset + done, buffer->data(), std::ssize(*buffer));
    crc = Crc32c(buffer->data(), std::ssize(*buffer), crc);
  }
  return crc;
}

ElementsPlace PlaceOf(int64_t step, const std::string& file, const PieceRecord& record) {
  if (record.at) return {record.at->step, record.at->file, record.at->offset, record.crc32c};
  return {step, file, record.offset, record.crc32c};
}

}  // namespace

std::set<ElementsPlace> BrokenReferences(Files& files, const std::string& folder, int64_t step,
                                         const TensorSource::Share& share) {
  std::set<ElementsPlace> broken;
  std::vector<char> buffer;
  int turn = 0;
  for (const auto& [name, listed] : ReadManifest(files, folder, step).files) {
    if (turn++ % share.parts != share.part) continue;
    PieceTable table;
    if (!IsWell([&, &file = name] { table = ReadPieceTable(*files.Open(PathOf(folder, step, file))); }))
      continue;
    for (const auto& [tensor, record] : table) {
      if (!record.at) continue;
      const ElementsPlace place = PlaceOf(step, name, record);
      bool has_crc = false;
      const bool is_read = IsWell([&, &piece = record] {
        const std::unique_ptr<FileReader> file = files.Open(PathOf(folder, place.step, place.file));
        has_crc = CrcOf(*file, place.offset, piece.num_bytes(), &buffer) == piece.crc32c;
      });
      if (!is_read || !has_crc) broken.insert(place);
    }
  }
  return broken;
}

std::vector<int64_t> StepsThatHave(Files& files, const std::string& folder,
                                   const std::set<ElementsPlace>& places) {
  std::vector<int64_t> steps;
  for (const int64_t step : ListSteps(files, folder)) {
    bool has = false;
    // What is found in one file is not lost by another that is broken.
    IsWell([&] {
      for (const auto& [name, listed] : ReadManifest(files, folder, step).files) {
        IsWell([&, &file = name] {
          for (const auto& [tensor, record] : ReadPieceTable(*files.Open(PathOf(folder, step, file)))) {
            has = has || places.contains(PlaceOf(step, file, record));
          }
        });
      }
    });
    if (has) steps.push_back(step);
  }
  return steps;
}

}  // namespace weft
