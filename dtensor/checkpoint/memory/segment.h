// A segment of memory that another process owns.

#ifndef WEFT_DTENSOR_CHECKPOINT_MEMORY_SEGMENT_H_
#define WEFT_DTENSOR_CHECKPOINT_MEMORY_SEGMENT_H_

#include <cstdint>
#include <string>

#include "runtime/tensor/tensor.h"

namespace weft {

// Memory that has the form of a file: what is written outlives this process, not its owner's. Owns its handle, not the memory.
// Threads: any, on parts that do not overlap.
// Errors:  ResourceExhausted where the system has no more memory; FailedPrecondition for all else. They name the path.
class MemorySegment {
 public:
  // Opens it, to be written.
  explicit MemorySegment(const std::string& path);
  ~MemorySegment();
  MemorySegment(const MemorySegment&) = delete;
  MemorySegment& operator=(const MemorySegment&) = delete;

  const std::string& path() const { return path_; }
  int64_t num_bytes() const;
  // Makes it of that size; all of it is there then, so that writing to mapped memory cannot fail.
  void Resize(int64_t num_bytes);

  void Write(int64_t offset, const void* data, int64_t num_bytes);
  // Errors: also DataLoss, if it ends before.
  void Read(int64_t offset, void* data, int64_t num_bytes) const;

  // The bytes from `offset`, a multiple of 4096, as a tensor of u8 that views the memory. It may outlive this object.
  // Errors: also DataLoss, if it ends before.
  Tensor Map(int64_t offset, int64_t num_bytes) const;

 private:
  [[noreturn]] void ThrowFailed(const char* what) const;

  const std::string path_;
  int fd_ = -1;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_MEMORY_SEGMENT_H_
