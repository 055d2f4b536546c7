#ifndef WEFT_RUNTIME_TENSOR_BUFFER_H_
#define WEFT_RUNTIME_TENSOR_BUFFER_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/base/intrusive_ptr.h"
#include "runtime/device/allocator.h"

namespace weft {

// Owns one allocation and returns it to its allocator when the last tensor that views it is gone.
class Buffer : public RefCounted<Buffer> {
 public:
  // Errors: ResourceExhausted, from the allocator.
  Buffer(std::shared_ptr<Allocator> allocator, int64_t num_bytes)
      : allocator_(std::move(allocator)),
        kind_(allocator_->kind()),
        data_(allocator_->Allocate(num_bytes, kind_)),
        num_bytes_(num_bytes) {}
  ~Buffer() { allocator_->Deallocate(data_, num_bytes_, kind_); }

  void* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  MemoryKind kind() const { return kind_; }  // the allocator's when this was allocated
  Device device() const { return allocator_->device(); }
  const std::shared_ptr<Allocator>& allocator() const { return allocator_; }

  // A copy of all of it in other memory, left here by whoever made it for others that want one. It is theirs: void when they
  // have let it go. What adds to this in place takes it away. Used by the thread of the allocator's owner.
  const std::weak_ptr<void>& copy() const { return copy_; }
  void set_copy(std::weak_ptr<void> copy) { copy_ = std::move(copy); }

 private:
  std::shared_ptr<Allocator> allocator_;
  MemoryKind kind_;
  void* data_;
  int64_t num_bytes_;
  std::weak_ptr<void> copy_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_BUFFER_H_
