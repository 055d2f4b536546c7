#include "dtensor/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/box_read.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Flushes to disk which names stand in the folder of `path`; false, with errno set, if that fails.
bool FlushFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return false;
  // EINVAL: a file system that flushes no folders, and so has nothing to promise.
  const int error = fsync(descriptor) == 0 || errno == EINVAL ? 0 : errno;
  close(descriptor);
  errno = error;
  return error == 0;
}

// The new file gets its name by a rename, which would end a device or a pipe of that name: for root /dev/null, too.
// Errors: InvalidArgument if something stands there that is no file.
void RequireFileOrNothing(const std::string& path) {
  struct stat there = {};
  if (stat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode)) return;
  ThrowInvalidArgument("cannot write '", path, "': expected a file, got ",
                       S_ISDIR(there.st_mode) ? "a folder" : "a device, a pipe or a socket");
}

// Opens the file of a temporary name, empty, for one writer at a time: a lock, which ends with its process, tells a file that is
// being written from one that a killed process has left. nullptr, with errno set, if that fails.
std::FILE* OpenTemporary(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) return nullptr;
  struct stat opened = {};
  struct stat named = {};
  // A file system without locks has one writer by its user's care.
  bool is_free = flock(descriptor, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR);
  if (!is_free) errno = EBUSY;
  // The writer before may have given it its name, or removed it, between opening and locking.
  if (is_free && (fstat(descriptor, &opened) != 0 || stat(path.c_str(), &named) != 0 ||
                  opened.st_ino != named.st_ino || opened.st_dev != named.st_dev)) {
    is_free = false;
    errno = EBUSY;
  }
  std::FILE* const file = is_free && ftruncate(descriptor, 0) == 0 ? fdopen(descriptor, "wb") : nullptr;
  if (file != nullptr) return file;
  const int error = errno;
  close(descriptor);
  errno = error;
  return nullptr;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, const std::vector<SafetensorsEntry>& entries,
                                     const SafetensorsMetadata& metadata)
    : path_(std::move(path)), entries_(entries), file_(nullptr, CloseAndRemove{path_ + ".tmp"}) {
  RequireFileOrNothing(path_);
  file_.reset(OpenTemporary(file_.get_deleter().path));
  WEFT_REQUIRE(file_ != nullptr, "cannot write '", path_,
               "': ", errno == EBUSY ? "another process is writing it" : std::strerror(errno));
  const std::string header = FormatSafetensorsHeader(path_, entries_, metadata);
  WriteBytes(header.data(), static_cast<int64_t>(header.size()));
}

void SafetensorsWriter::CloseAndRemove::operator()(std::FILE* file) const {
  std::remove(path.c_str());  // while the lock is held: the name is still this file's
  std::fclose(file);
}

void SafetensorsWriter::ThrowCannotWrite() const {
  Throw(absl::StatusCode::kResourceExhausted, "cannot write '", path_, "': ", std::strerror(errno));
}

void SafetensorsWriter::WriteBytes(const void* data, int64_t num_bytes) {
  if (std::fwrite(data, 1, static_cast<size_t>(num_bytes), file_.get()) == static_cast<size_t>(num_bytes))
    return;
  ThrowCannotWrite();
}

void SafetensorsWriter::Write(const Tensor& tensor) {
  WEFT_REQUIRE(next_ < entries_.size(), "checkpoint '", path_, "': all ", entries_.size(),
               " tensors are written");
  const SafetensorsEntry& entry = entries_[next_];
  WEFT_REQUIRE(tensor.dtype() == entry.type.dtype && tensor.shape() == entry.type.shape, "checkpoint '",
               path_, "': tensor '", entry.name, "' is ", entry.type.ToString(), ", got ",
               tensor.TypeString());
  const Tensor whole = OnHost(tensor);
  WriteBytes(whole.data(), whole.num_bytes());
  ++next_;
}

void SafetensorsWriter::Finish() {
  WEFT_REQUIRE(next_ == entries_.size(), "checkpoint '", path_, "': ", entries_.size() - next_,
               " tensors are not written yet, the first is '", entries_[next_].name, "'");
  const bool flushed = std::fflush(file_.get()) == 0 && fsync(fileno(file_.get())) == 0;
  if (!flushed || std::rename(file_.get_deleter().path.c_str(), path_.c_str()) != 0) ThrowCannotWrite();
  std::fclose(file_.release());
  if (!FlushFolderOf(path_)) ThrowCannotWrite();
}

SafetensorsReader::SafetensorsReader(const std::string& path)
    : path_(path), file_(MakeDiskFiles()->Open(path)), header_(ReadSafetensorsHeader(*file_)) {}

std::vector<std::string> SafetensorsReader::Names() const {
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : header_.entries) names.push_back(entry.name);
  return names;
}

const TensorType* SafetensorsReader::Find(absl::string_view name) const {
  const auto skipped = header_.skipped.find(std::string(name));
  if (skipped != header_.skipped.end()) {
    ThrowLacksDType(path_, absl::StrCat("tensor '", name, "'"), skipped->second);
  }
  const int found = header_.Find(name);
  return found < 0 ? nullptr : &header_.entries[found].type;
}

void SafetensorsReader::DoRead(const std::string& name, const ShardBox& box, char* out) {
  const int found = header_.Find(name);
  const TensorType& type = header_.entries[found].type;
  const ShardBox whole = WholeBox(type.shape);
  const StoredBox stored = {.region = {whole.offset, whole.shape},
                            .file_offset = header_.data_offset + header_.ranges[found].begin,
                            .item_size = ItemSize(type.dtype)};
  ReadShared(*file_, stored, {box.offset, box.shape}, out);
}

}  // namespace weft
