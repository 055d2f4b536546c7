#ifndef WEFT_RUNTIME_TENSOR_BUFFER_H_
#define WEFT_RUNTIME_TENSOR_BUFFER_H_

#include <cstdint>
#include <memory>

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

  // A copy of all of it in other memory, which who made it has left here for others that want one: null, or as this was
  // when it was made. Goes with this. Used by the thread of the allocator's owner.
  const IntrusivePtr<Buffer>& copy() const { return copy_; }
  void set_copy(IntrusivePtr<Buffer> copy) { copy_ = std::move(copy); }

 private:
  std::shared_ptr<Allocator> allocator_;
  MemoryKind kind_;
  void* data_;
  int64_t num_bytes_;
  IntrusivePtr<Buffer> copy_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_BUFFER_H_
