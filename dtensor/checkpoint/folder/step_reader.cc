#include "dtensor/checkpoint/folder/step_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dtensor/checkpoint/box_read.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int64_t kPart = 8 << 20;

}  // namespace

StepReader::StepReader(std::shared_ptr<Files> files, const std::string& folder, int64_t step)
    : files_(std::move(files)),
      folder_(folder),
      path_(JoinPath(folder, StepName(step))),
      manifest_(ReadManifest(*files_, folder, step)),
      open_(files_) {}

std::vector<std::string> StepReader::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : manifest_.tensors) names.push_back(name);
  return names;
}

const TensorType* StepReader::Find(absl::string_view name) const {
  const auto found = manifest_.tensors.find(std::string(name));
  return found == manifest_.tensors.end() ? nullptr : &found->second.type;
}

const StepReader::RankFile& StepReader::FileOf(int rank) {
  const auto known = rank_files_.find(rank);
  if (known != rank_files_.end()) return known->second;
  const std::string name = RankFileName(rank);
  const auto listed = manifest_.files.find(name);
  if (listed == manifest_.files.end()) {
    Throw(absl::StatusCode::kDataLoss, "'", path_, "': the manifest names no file '", name,
          "', which tensors lie in");
  }
  RankFile of_rank = {.path = JoinPath(path_, name), .table = {}};
  const std::shared_ptr<FileReader> file = open_.Get(of_rank.path);
  uint32_t crc = 0;
  of_rank.table = ReadPieceTable(*file, &crc);
  if (crc != listed->second.header_crc32c || file->num_bytes() != listed->second.num_bytes) {
    Throw(absl::StatusCode::kDataLoss, "'", file->path(), "' has ", file->num_bytes(),
          " bytes and a header of checksum ", CrcText(crc), "; the manifest says ", listed->second.num_bytes,
          " and ", CrcText(listed->second.header_crc32c));
  }
  return rank_files_.emplace(rank, std::move(of_rank)).first->second;
}

const std::vector<OwnedBox>& StepReader::BoxesOf(const std::string& name) {
  const auto known = boxes_.find(name);
  if (known != boxes_.end()) return known->second;
  // At most one per file.
  const int64_t num_files = std::ssize(manifest_.files);
  std::vector<OwnedBox> boxes = OwnedBoxes(manifest_.tensors.at(name), num_files + 1);
  if (std::ssize(boxes) > num_files) {
    Throw(absl::StatusCode::kDataLoss, "'", path_, "': tensor '", name, "' lies in more files than the ",
          num_files, " that the manifest names");
  }
  return boxes_.emplace(name, std::move(boxes)).first->second;
}

StepReader::OpenPiece StepReader::PieceOf(const std::string& name, const OwnedBox& owned) {
  const RankFile& source = FileOf(owned.rank);
  const auto piece = source.table.find(name);
  if (piece == source.table.end() || piece->second.box != owned.box ||
      piece->second.dtype != manifest_.tensors.at(name).type.dtype) {
    Throw(absl::StatusCode::kDataLoss, "'", source.path, "' lacks the box of tensor '", name,
          "' that the manifest says it has");
  }
  const PieceRecord& record = piece->second;
  if (!record.at) return {open_.Get(source.path), record.offset, record.crc32c};
  return {open_.Get(JoinPath(JoinPath(folder_, StepName(record.at->step)), record.at->file)),
          record.at->offset, record.crc32c};
}

void StepReader::RequireCrc(const std::string& name, const OpenPiece& piece, uint32_t crc) const {
  if (crc == piece.crc32c) return;
  Throw(absl::StatusCode::kDataLoss, "'", piece.file->path(), "': the elements of tensor '", name,
        "' have the checksum ", CrcText(crc), ", ", CrcText(piece.crc32c), " was expected");
}

void StepReader::DoRead(const std::string& name, const ShardBox& box, char* out) {
  const TensorType& type = manifest_.tensors.at(name).type;
  const Region wanted = {box.offset, box.shape};
  for (const OwnedBox& owned : BoxesOf(name)) {
    if (Intersect({owned.box.offset, owned.box.shape}, wanted).empty()) continue;
    const OpenPiece piece = PieceOf(name, owned);
    const StoredBox stored = {.region = {owned.box.offset, owned.box.shape},
                              .file_offset = piece.offset,
                              .item_size = ItemSize(type.dtype)};
    const std::optional<uint32_t> crc = ReadShared(*piece.file, stored, wanted, out);
    if (crc) RequireCrc(name, piece, *crc);
  }
}

void StepReader::CheckPieces(const std::string& name, const std::vector<ShardBox>& boxes,
                             const Share& share) {
  const int64_t item_size = ItemSize(manifest_.tensors.at(name).type.dtype);
  // By files, so that each is opened by one; where those are few, by pieces.
  const bool by_file = std::ssize(manifest_.files) >= share.parts;
  std::vector<char> buffer;
  for (const OwnedBox& owned : BoxesOf(name)) {
    const Region stored = {owned.box.offset, owned.box.shape};
    const bool is_read = std::any_of(boxes.begin(), boxes.end(), [&](const ShardBox& box) {
      return Intersect(stored, {box.offset, box.shape}) == stored;
    });
    if (is_read) continue;
    const int64_t turn = by_file ? owned.rank : num_unread_++;
    if (turn % share.parts != share.part) continue;
    const OpenPiece piece = PieceOf(name, owned);
    const int64_t num_bytes = owned.box.shape.num_elements() * item_size;
    uint32_t crc = 0;
    for (int64_t done = 0; done < num_bytes; done += std::ssize(buffer)) {
      buffer.resize(static_cast<size_t>(std::min(kPart, num_bytes - done)));
      ReadAll(*piece.file, piece.offset + done, buffer.data(), std::ssize(buffer));
      crc = Crc32c(buffer.data(), std::ssize(buffer), crc);
    }
    num_bytes_checked_ += num_bytes;
    RequireCrc(name, piece, crc);
  }
}

}  // namespace weft
