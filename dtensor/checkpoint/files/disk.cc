#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "dtensor/checkpoint/files/files.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Linux moves at most this much in one call.
constexpr int64_t kMostAtOnce = int64_t{1} << 30;

[[noreturn]] void ThrowErrno(absl::string_view what, const std::string& path, int error = errno) {
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  if (error == ENOENT || error == ENOTDIR) code = absl::StatusCode::kNotFound;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) code = absl::StatusCode::kResourceExhausted;
  Throw(code, "cannot ", what, " '", path, "': ", std::strerror(error));
}

// What a call that signals may break off returns.
template <class Call>
auto Uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, absl::string_view what)
      : descriptor_(Uninterrupted([&] { return open(path.c_str(), flags | O_CLOEXEC, 0666); })) {
    if (descriptor_ < 0) ThrowErrno(what, path);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { Close(); }

  operator int() const { return descriptor_; }
  int Close() {
    if (descriptor_ < 0) return 0;
    const int result = close(descriptor_);
    descriptor_ = -1;
    return result;
  }

 private:
  int descriptor_;
};

class DiskWriter final : public FileWriter {
 public:
  explicit DiskWriter(const std::string& path)
      : path_(path), file_(path, O_WRONLY | O_CREAT | O_TRUNC, "write") {}

  int64_t Write(const void* data, int64_t num_bytes) override {
    const auto part = static_cast<size_t>(std::min(num_bytes, kMostAtOnce));
    const ssize_t written = Uninterrupted([&] { return write(file_, data, part); });
    if (written <= 0) ThrowErrno("write", path_);
    return written;
  }
  void Sync() override {
    if (Uninterrupted([&] { return fsync(file_); }) != 0) ThrowErrno("flush", path_);
  }
  void Close() override {
    // Network file systems tell of a full disk here.
    if (file_.Close() != 0 && errno != EINTR) ThrowErrno("close", path_);
  }

 private:
  const std::string path_;
  Descriptor file_;
};

// The path of a regular file: to open a pipe would wait for somebody that writes into it.
const std::string& RequireRegular(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) ThrowErrno("read", path);
  if (S_ISDIR(status.st_mode)) ThrowErrno("read", path, EISDIR);
  if (!S_ISREG(status.st_mode)) {
    Throw(absl::StatusCode::kFailedPrecondition, "cannot read '", path, "': expected a regular file");
  }
  return path;
}

class DiskReader final : public FileReader {
 public:
  explicit DiskReader(const std::string& path) : path_(path), file_(RequireRegular(path), O_RDONLY, "read") {
    struct stat status = {};
    if (fstat(file_, &status) != 0) ThrowErrno("read", path_);
    num_bytes_ = status.st_size;
  }

  const std::string& path() const override { return path_; }
  int64_t num_bytes() const override { return num_bytes_; }
  int64_t ReadAt(int64_t offset, void* data, int64_t num_bytes) override {
    const auto part = static_cast<size_t>(std::min(num_bytes, kMostAtOnce));
    const ssize_t read = Uninterrupted([&] { return pread(file_, data, part, offset); });
    if (read < 0) ThrowErrno("read", path_);
    return read;
  }

 private:
  const std::string path_;
  Descriptor file_;
  int64_t num_bytes_ = 0;
};

class DiskLock final : public FileLock {
 public:
  explicit DiskLock(const std::string& path) : file_(path, O_RDWR | O_CREAT, "lock") {}

  // Of this description, not of the process: two objects of one process exclude each other, and other descriptors of the file
  // may be closed. Where the system knows no locks, or its server answers none, everybody has it.
  bool Take() {
    struct flock whole = {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    const int result = Uninterrupted([&] { return fcntl(file_, F_OFD_SETLK, &whole); });
    return result == 0 || (errno != EAGAIN && errno != EACCES);
  }

  // For people: that it holds does not depend on it.
  void Say(absl::string_view text) {
    const bool is_empty = ftruncate(file_, 0) == 0;
    if (is_empty) (void)!pwrite(file_, text.data(), text.size(), 0);
  }

 private:
  Descriptor file_;
};

class DiskFiles final : public Files {
 public:
  std::unique_ptr<FileWriter> Create(const std::string& path) override {
    return std::make_unique<DiskWriter>(path);
  }
  std::unique_ptr<FileReader> Open(const std::string& path) override {
    return std::make_unique<DiskReader>(path);
  }
  bool MakeFolder(const std::string& path) override {
    if (mkdir(path.c_str(), 0777) == 0) return true;
    const int error = errno;
    struct stat status = {};
    if (error == EEXIST && stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return false;
    ThrowErrno("make the folder", path, error);
  }
  void SyncFolder(const std::string& path) override {
    const Descriptor folder(path.empty() ? "." : path, O_RDONLY | O_DIRECTORY, "flush the folder");
    // EINVAL: a file system that flushes no folders, and so has nothing to promise.
    if (Uninterrupted([&] { return fsync(folder); }) != 0 && errno != EINVAL)
      ThrowErrno("flush the folder", path);
  }
  void Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) ThrowErrno("rename", absl::StrCat(from, "' to '", to));
  }
  std::vector<std::string> List(const std::string& folder) override {
    std::vector<std::string> names;
    std::error_code failure;
    std::filesystem::directory_iterator entries(folder.empty() ? "." : folder, failure);
    for (; !failure && entries != std::filesystem::directory_iterator(); entries.increment(failure)) {
      names.push_back(entries->path().filename().string());
    }
    if (failure) ThrowErrno("list", folder, failure.value());
    std::sort(names.begin(), names.end());
    return names;
  }
  void Remove(const std::string& path) override {
    if (std::remove(path.c_str()) != 0) ThrowErrno("remove", path);
  }
  bool IsFolder(const std::string& path) override {
    struct stat status = {};
    return lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  }
  std::optional<int64_t> SizeOf(const std::string& path) override {
    struct stat status = {};
    if (stat(path.c_str(), &status) == 0) {
      return S_ISREG(status.st_mode) ? std::optional<int64_t>(status.st_size) : std::nullopt;
    }
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    ThrowErrno("read", path);
  }
  std::unique_ptr<FileLock> TryLock(const std::string& path, absl::string_view text) override {
    auto lock = std::make_unique<DiskLock>(path);
    if (!lock->Take()) return nullptr;
    lock->Say(text);
    return lock;
  }
};

}  // namespace

std::shared_ptr<Files> MakeDiskFiles() { return std::make_shared<DiskFiles>(); }

}  // namespace weft
