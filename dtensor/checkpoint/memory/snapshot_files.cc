#include "dtensor/checkpoint/memory/snapshot_files.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

class PieceReader final : public FileReader {
 public:
  PieceReader(const std::string& path, const Tensor& bytes, int64_t header_bytes)
      : path_(path), bytes_(bytes), header_bytes_(header_bytes) {}

  const std::string& path() const override { return path_; }
  int64_t num_bytes() const override { return bytes_.num_bytes(); }
  int64_t ReadAt(int64_t offset, void* data, int64_t num_bytes) override {
    if (offset < 0 || offset >= this->num_bytes()) return 0;
    const int64_t elements = this->num_bytes() - header_bytes_;
    // The head comes first in the file, and last in memory.
    const bool is_head = offset < header_bytes_;
    const int64_t from = is_head ? elements + offset : offset - header_bytes_;
    const int64_t count = std::min(num_bytes, (is_head ? this->num_bytes() : elements) - from);
    std::memcpy(data, static_cast<const char*>(bytes_.data()) + from, static_cast<size_t>(count));
    return count;
  }

 private:
  const std::string path_;
  const Tensor bytes_;
  const int64_t header_bytes_;
};

[[noreturn]] void ThrowReadOnly(const std::string& path) {
  Throw(absl::StatusCode::kFailedPrecondition, "'", path, "': a snapshot in memory is read alone");
}

}  // namespace

std::unique_ptr<FileReader> MakePieceReader(const std::string& path, const Tensor& bytes,
                                            int64_t header_bytes) {
  WEFT_CHECK(header_bytes >= 0 && header_bytes <= bytes.num_bytes(), path);
  return std::make_unique<PieceReader>(path, bytes, header_bytes);
}

void SnapshotFiles::Add(const std::string& path, const Tensor& bytes, int64_t header_bytes) {
  contents_[path] = {bytes, header_bytes};
}

void SnapshotFiles::AddText(const std::string& path, const std::string& text) {
  const std::vector<uint8_t> bytes(text.begin(), text.end());
  contents_[path] = {Tensor::FromValues<uint8_t>({std::ssize(bytes)}, bytes), std::ssize(bytes)};
}

std::unique_ptr<FileReader> SnapshotFiles::Open(const std::string& path) {
  const auto found = contents_.find(path);
  if (found == contents_.end()) {
    Throw(absl::StatusCode::kNotFound, "'", path, "' was not brought here for this rank");
  }
  return MakePieceReader(path, found->second.bytes, found->second.header_bytes);
}

std::vector<std::string> SnapshotFiles::List(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& [path, content] : contents_) {
    if (FolderOf(path) == folder) names.push_back(path.substr(folder.size() + 1));
  }
  return names;
}

bool SnapshotFiles::IsFolder(const std::string& path) { return !List(path).empty(); }

std::optional<int64_t> SnapshotFiles::SizeOf(const std::string& path) {
  const auto found = contents_.find(path);
  if (found == contents_.end()) return std::nullopt;
  return found->second.bytes.num_bytes();
}

std::unique_ptr<FileWriter> SnapshotFiles::Create(const std::string& path) { ThrowReadOnly(path); }
bool SnapshotFiles::MakeFolder(const std::string& path) { ThrowReadOnly(path); }
void SnapshotFiles::SyncFolder(const std::string& path) { ThrowReadOnly(path); }
void SnapshotFiles::Rename(const std::string& from, const std::string&) { ThrowReadOnly(from); }
void SnapshotFiles::Remove(const std::string& path) { ThrowReadOnly(path); }

}  // namespace weft
