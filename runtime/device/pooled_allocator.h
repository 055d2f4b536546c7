#ifndef WEFT_RUNTIME_DEVICE_POOLED_ALLOCATOR_H_
#define WEFT_RUNTIME_DEVICE_POOLED_ALLOCATOR_H_

#include <array>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "runtime/device/allocator.h"

namespace weft {

// What allocators of memory that is dear to get share: freed blocks are kept by size class and reused, so
// that a training step after the first asks the system for nothing. A device adds where blocks come from.
//
// One lock guards all: uncontended it costs less than telling the owner's thread from others would save, and
// a block that a peer's thread returns is at once there for reuse. The free lists are kept outside the
// blocks, which need not be memory that the host can touch.
class PooledAllocator : public Allocator {
 public:
  void* Allocate(int64_t num_bytes) final;
  void Deallocate(void* data, int64_t num_bytes) noexcept final;
  AllocatorStats stats() const final;
  void ResetPeak() final;

 protected:
  // `cap_bytes`: no more live bytes than this; 0: no limit.
  explicit PooledAllocator(int64_t cap_bytes)
      : cap_bytes_(cap_bytes == 0 ? std::numeric_limits<int64_t>::max() : cap_bytes) {}

  // A block of so many bytes, or null if the system has no more.
  virtual void* TakeFromSystem(int64_t num_bytes) = 0;
  virtual void ReturnToSystem(void* block, int64_t num_bytes) noexcept = 0;

  // A block of `num_bytes` is handed out, of which the caller may touch `usable_bytes`; or, with 0, is back.
  virtual void Guard(void* /*block*/, int64_t /*num_bytes*/, int64_t /*usable_bytes*/) noexcept {}

  // Gives the pool back to the system. Of the derived class's destructor too, whose functions it calls.
  void ReturnPoolToSystem() noexcept;

 private:
  // Blocks are as large as their size class: multiples of 64 up to 512, from there 8 classes a doubling, so
  // that at most an eighth is wasted and the pool serves requests that vary a little (uneven shards, last
  // batches).
  static constexpr int kClassesPerDoubling = 8;
  static constexpr int kNumClasses = kClassesPerDoubling * 48;
  struct SizeClass {
    int index;
    int64_t num_bytes;
  };
  static constexpr SizeClass ClassAt(int index);
  static constexpr SizeClass ClassOf(int64_t num_bytes);
  static constexpr bool ClassesFit();

  void* TakeFromPool(const SizeClass& size_class, int64_t num_bytes);
  void* TakeNew(const SizeClass& size_class, int64_t num_bytes);
  void Count(int64_t num_bytes);
  [[noreturn]] void ThrowExhausted(int64_t num_bytes, bool is_capped) const;

  const int64_t cap_bytes_;
  mutable std::mutex mutex_;
  std::array<std::vector<void*>, kNumClasses> free_blocks_;
  AllocatorStats stats_;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_DEVICE_POOLED_ALLOCATOR_H_
