#ifndef WEFT_TESTS_FORWARDING_ALLOCATOR_H_
#define WEFT_TESTS_FORWARDING_ALLOCATOR_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "runtime/device/allocator.h"

namespace weft {

// Another allocator's memory, for tests that see or refuse what is allocated.
class ForwardingAllocator : public Allocator {
 public:
  Device device() const final { return inner_->device(); }
  AllocatorStats stats() const final { return inner_->stats(); }
  MemoryByKind by_kind() const final { return inner_->by_kind(); }
  void ResetPeak() final { inner_->ResetPeak(); }

 protected:
  explicit ForwardingAllocator(std::shared_ptr<Allocator> inner) : inner_(std::move(inner)) {}

  void* DoAllocate(int64_t num_bytes, MemoryKind kind) override { return inner_->Allocate(num_bytes, kind); }
  void DoDeallocate(void* data, int64_t num_bytes, MemoryKind kind) noexcept override {
    inner_->Deallocate(data, num_bytes, kind);
  }

 private:
  const std::shared_ptr<Allocator> inner_;
};

}  // namespace weft

#endif  // WEFT_TESTS_FORWARDING_ALLOCATOR_H_
