// A pool whose host has no memory left: what comes back to it stays there all the same.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <vector>

#include "runtime/device/pooled_allocator.h"
#include "tests/every_operator_new.h"

namespace {

std::atomic<bool> host_is_full = false;

}  // namespace

void BeforeAllocation() {
  if (host_is_full) throw std::bad_alloc();
}

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

// A thread that frees a tensor may hold a lock. An observer of the pool may need that lock.
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
