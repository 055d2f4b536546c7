#include "dtensor/checkpoint/memory/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "runtime/base/error.h"
#include "runtime/base/file_space.h"
#include "runtime/device/allocator.h"

namespace weft {
namespace {

// Hands out one mapping, once. A tensor is a buffer of an allocator: so tensors can view mapped memory.
class Mapping final : public Allocator {
 public:
  explicit Mapping(void* data) : data_(data) {}

  Device device() const override { return {}; }
  AllocatorStats stats() const override { return {}; }
  MemoryByKind by_kind() const override { return {}; }
  void ResetPeak() override {}

 private:
  void* DoAllocate(int64_t, MemoryKind) override { return data_; }
  void DoDeallocate(void* data, int64_t num_bytes, MemoryKind) noexcept override {
    if (num_bytes > 0) munmap(data, static_cast<size_t>(num_bytes));
  }

  void* const data_;
};

}  // namespace

MemorySegment::MemorySegment(const std::string& path)
    : path_(path), fd_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
  if (fd_ < 0) ThrowFailed("cannot be opened");
  // Only files of shared memory have seals.
  if (fcntl(fd_, F_GET_SEALS) >= 0) return;
  close(fd_);
  Throw(absl::StatusCode::kFailedPrecondition, "memory for snapshots: '", path_,
        "' is a file of another kind: its owner has ended, or the ranks do not see its processes (/proc)");
}

MemorySegment::~MemorySegment() { close(fd_); }

void MemorySegment::ThrowFailed(const char* what) const {
  const auto code = errno == ENOSPC || errno == ENOMEM ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kFailedPrecondition;
  Throw(code, "memory for snapshots: '", path_, "' ", what, ": ", strerror(errno));
}

int64_t MemorySegment::num_bytes() const {
  struct stat status = {};
  if (fstat(fd_, &status) != 0) ThrowFailed("has no size");
  return status.st_size;
}

void MemorySegment::Resize(int64_t num_bytes) {
  if (ftruncate(fd_, num_bytes) != 0) ThrowFailed("cannot be resized");
  if (num_bytes == 0) return;
  if (const int error = GetFileSpace(fd_, /*offset=*/0, num_bytes)) {
    errno = error;
    ThrowFailed("cannot be resized");
  }
}

void MemorySegment::Write(int64_t offset, const void* data, int64_t num_bytes) {
  const char* next = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t written = pwrite(fd_, next, static_cast<size_t>(num_bytes), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) ThrowFailed("cannot be written");
    next += written;
    offset += written;
    num_bytes -= written;
  }
}

void MemorySegment::Read(int64_t offset, void* data, int64_t num_bytes) const {
  char* next = static_cast<char*>(data);
  while (num_bytes > 0) {
    const ssize_t read = pread(fd_, next, static_cast<size_t>(num_bytes), offset);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) ThrowFailed("cannot be read");
    if (read == 0) Throw(absl::StatusCode::kDataLoss, "'", path_, "' ends at byte ", offset);
    next += read;
    offset += read;
    num_bytes -= read;
  }
}

Tensor MemorySegment::Map(int64_t offset, int64_t num_bytes) const {
  if (this->num_bytes() < offset + num_bytes) {
    Throw(absl::StatusCode::kDataLoss, "'", path_, "' has ", this->num_bytes(), " bytes, expected ",
          offset + num_bytes);
  }
  void* data = nullptr;
  if (num_bytes > 0) {
    data = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, offset);
    if (data == MAP_FAILED) ThrowFailed("cannot be mapped");
  }
  return Tensor::Empty(std::make_shared<Mapping>(data), DType::kU8, {num_bytes});
}

}  // namespace weft
