#include "dtensor/checkpoint/folder/step_reader.h"

#include <optional>
#include <utility>

#include "dtensor/checkpoint/box_read.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {

StepReader::StepReader(std::shared_ptr<Files> files, const std::string& folder, int64_t step)
    : files_(std::move(files)),
      folder_(folder),
      path_(JoinPath(folder, StepName(step))),
      manifest_(ReadManifest(*files_, folder, step)) {}

std::vector<std::string> StepReader::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : manifest_.tensors) names.push_back(name);
  return names;
}

const TensorType* StepReader::Find(absl::string_view name) const {
  const auto found = manifest_.tensors.find(std::string(name));
  return found == manifest_.tensors.end() ? nullptr : &found->second.type;
}

const StepReader::OpenFile& StepReader::FileOf(int rank) {
  const auto known = open_.find(rank);
  if (known != open_.end()) return known->second;
  const std::string name = RankFileName(rank);
  const auto listed = manifest_.files.find(name);
  if (listed == manifest_.files.end()) {
    Throw(absl::StatusCode::kDataLoss, "'", path_, "': the manifest names no file '", name,
          "', which tensors lie in");
  }
  OpenFile opened;
  opened.file = files_->Open(JoinPath(path_, name));
  uint32_t crc = 0;
  opened.table = ReadPieceTable(*opened.file, &crc);
  if (crc != listed->second.header_crc32c || opened.file->num_bytes() != listed->second.num_bytes) {
    Throw(absl::StatusCode::kDataLoss, "'", opened.file->path(), "' has ", opened.file->num_bytes(),
          " bytes and a header of checksum ", CrcText(crc), "; the manifest says ", listed->second.num_bytes,
          " and ", CrcText(listed->second.header_crc32c));
  }
  return open_.emplace(rank, std::move(opened)).first->second;
}

FileReader& StepReader::Opened(const std::string& path) {
  std::unique_ptr<FileReader>& file = others_[path];
  if (file == nullptr) file = files_->Open(path);
  return *file;
}

void StepReader::DoRead(const std::string& name, const ShardBox& box, char* out) {
  const TensorPlace& place = manifest_.tensors.at(name);
  const TensorType& type = place.type;
  const Region wanted = {box.offset, box.shape};
  const auto boxes = boxes_.try_emplace(name);
  if (boxes.second) boxes.first->second = OwnedBoxes(place);
  for (const OwnedBox& owned : boxes.first->second) {
    if (Intersect({owned.box.offset, owned.box.shape}, wanted).empty()) continue;
    const OpenFile& source = FileOf(owned.rank);
    const auto piece = source.table.find(name);
    if (piece == source.table.end() || piece->second.box != owned.box || piece->second.dtype != type.dtype) {
      Throw(absl::StatusCode::kDataLoss, "'", source.file->path(), "' lacks the box of tensor '", name,
            "' that the manifest says it has");
    }
    const PieceRecord& record = piece->second;
    FileReader& file = record.at
                           ? Opened(JoinPath(JoinPath(folder_, StepName(record.at->step)), record.at->file))
                           : *source.file;
    const StoredBox stored = {.region = {owned.box.offset, owned.box.shape},
                              .file_offset = record.at ? record.at->offset : record.offset,
                              .item_size = ItemSize(type.dtype)};
    const std::optional<uint32_t> crc = ReadShared(file, stored, wanted, out);
    if (crc && *crc != record.crc32c) {
      Throw(absl::StatusCode::kDataLoss, "'", file.path(), "': the elements of tensor '", name,
            "' have the checksum ", CrcText(*crc), ", ", CrcText(record.crc32c), " was expected");
    }
  }
  num_bytes_read_ += box.shape.num_elements() * ItemSize(type.dtype);
}

}  // namespace weft
