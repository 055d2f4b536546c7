// A pool whose host has no memory left: what comes back to it stays there all the same.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "runtime/device/pooled_allocator.h"

namespace {

std::atomic<bool> host_is_full = false;

void* Take(std::size_t num_bytes, std::size_t alignment) {
  if (host_is_full) throw std::bad_alloc();
  // aligned_alloc wants a multiple of the alignment.
  void* const block = std::aligned_alloc(alignment, (num_bytes + alignment) / alignment * alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

// Out of line: a compiler that saw free() in operator delete and not what operator new calls would warn.
[[gnu::noinline]] void Return(void* block) { std::free(block); }

}  // namespace

// All forms: a sanitizer's own would otherwise stand beside these, and each pair must be of one kind.
void* operator new(std::size_t num_bytes) { return Take(num_bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t num_bytes) { return operator new(num_bytes); }
void* operator new(std::size_t num_bytes, std::align_val_t alignment) {
  return Take(num_bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t num_bytes, std::align_val_t alignment) {
  return operator new(num_bytes, alignment);
}
void* operator new(std::size_t num_bytes, const std::nothrow_t&) noexcept { return operator new(num_bytes); }
void* operator new[](std::size_t num_bytes, const std::nothrow_t&) noexcept {
  return operator new(num_bytes);
}
void* operator new(std::size_t num_bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return operator new(num_bytes, alignment);
}
void* operator new[](std::size_t num_bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return operator new(num_bytes, alignment);
}
void operator delete(void* block) noexcept { Return(block); }
void operator delete[](void* block) noexcept { Return(block); }
void operator delete(void* block, std::size_t) noexcept { Return(block); }
void operator delete[](void* block, std::size_t) noexcept { Return(block); }
void operator delete(void* block, std::align_val_t) noexcept { Return(block); }
void operator delete[](void* block, std::align_val_t) noexcept { Return(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { Return(block); }
void operator delete[](void* block, std::size_t, std::align_val_t) noexcept { Return(block); }

namespace weft {
namespace {

// Over addresses that nobody touches.
class CountedPool final : public PooledAllocator {
 public:
  CountedPool() : PooledAllocator(/*cap_bytes=*/0) {}
  ~CountedPool() override { ReturnPoolToSystem(); }
  Device device() const override { return {}; }

  int64_t num_given_back = 0;
  bool is_exhausted = false;

 protected:
  void* TakeFromSystem(int64_t num_bytes) override {
    if (is_exhausted) return nullptr;
    next_ += num_bytes;
    return reinterpret_cast<void*>(next_);
  }
  void ReturnToSystem(void*, int64_t) noexcept override { ++num_given_back; }

 private:
  intptr_t next_ = 0;
};

// Who frees a tensor may hold a lock that an observer of the pool takes.
TEST(FullHostTest, DeallocateGivesNothingBackToTheSystem) {
  constexpr int64_t kBytes = 1024;
  constexpr int kBlocks = 1000;
  CountedPool pool;
  std::vector<void*> blocks(kBlocks);
  for (void*& block : blocks) block = pool.Allocate(kBytes);
  // Some go, for others: the rest keep their places.
  for (int i = 0; i < kBlocks / 2; ++i) pool.Deallocate(blocks[i], kBytes);
  pool.is_exhausted = true;
  EXPECT_ANY_THROW(pool.Allocate(2 * kBytes));
  EXPECT_EQ(pool.num_given_back, kBlocks / 2);
  pool.is_exhausted = false;
  for (int i = 0; i < kBlocks / 2; ++i) blocks[i] = pool.Allocate(kBytes);
  host_is_full = true;
  for (void* const block : blocks) pool.Deallocate(block, kBytes);
  host_is_full = false;
  EXPECT_EQ(pool.num_given_back, kBlocks / 2);
  EXPECT_EQ(pool.stats().pooled_bytes, kBlocks * kBytes);
}

}  // namespace
}  // namespace weft
