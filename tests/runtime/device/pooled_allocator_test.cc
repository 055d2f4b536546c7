// What a pool takes from the system and gives back to it. What its blocks are like: allocator_test.

#include "runtime/device/pooled_allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int64_t kMebibyte = 1 << 20;

// A pool over addresses that nobody touches: blocks of any size, and every call of the system is seen.
class CountedPool final : public PooledAllocator {
 public:
  explicit CountedPool(int64_t cap_bytes = 0) : PooledAllocator(cap_bytes) {}
  ~CountedPool() override { ReturnPoolToSystem(); }
  Device device() const override { return {}; }

  int64_t held_bytes = 0;  // taken from the system, and not yet given back
  int64_t num_taken = 0;
  bool has_room = true;  // of the system, whatever it is given back
  bool is_exhausted = false;
  int64_t num_asked = 0;            // whether it has
  std::vector<int64_t> given_back;  // sizes, in order

 protected:
  void* TakeFromSystem(int64_t num_bytes) override {
    if (is_exhausted) return nullptr;
    held_bytes += num_bytes;
    next_ += num_bytes;
    ++num_taken;
    return reinterpret_cast<void*>(next_);
  }
  void ReturnToSystem(void*, int64_t num_bytes) noexcept override {
    held_bytes -= num_bytes;
    given_back.push_back(num_bytes);
  }
  bool SystemHasRoom(int64_t) override {
    ++num_asked;
    return has_room;
  }

 private:
  intptr_t next_ = 0;
};

// Blocks that a test gives back at its end, or before, all or one by one.
class Blocks {
 public:
  explicit Blocks(Allocator& allocator) : allocator_(allocator) {}
  ~Blocks() {
    while (!blocks_.empty()) GiveBack(0);
  }
  void Take(int64_t num_bytes) { blocks_.emplace_back(allocator_.Allocate(num_bytes), num_bytes); }
  void GiveBack(size_t i) {
    allocator_.Deallocate(blocks_[i].first, blocks_[i].second);
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
  }

 private:
  Allocator& allocator_;
  std::vector<std::pair<void*, int64_t>> blocks_;
};

// A step's tensors are of several sizes, each in proportion to the step's length; the widest live briefly.
struct Held {
  int64_t most_held = 0;
  int64_t most_live = 0;
};
Held RunSteps(CountedPool& pool, const std::vector<int64_t>& lengths) {
  Held held;
  for (const int64_t length : lengths) {
    Blocks blocks(pool);
    const auto take = [&](int64_t features) {
      blocks.Take(length * features);
      held.most_held = std::max(held.most_held, pool.held_bytes);
      held.most_live = std::max(held.most_live, pool.stats().live_bytes);
    };
    for (int layer = 0; layer < 6; ++layer) {
      take(768);
      take(3072);
      take(700);
      blocks.GiveBack(static_cast<size_t>(2 * layer + 1));
    }
  }
  return held;
}

std::vector<int64_t> RandomLengths(size_t count, int64_t shortest, int64_t longest) {
  std::mt19937 random(11);
  std::vector<int64_t> lengths(count);
  for (int64_t& length : lengths) length = shortest + random() % (longest - shortest + 1);
  return lengths;
}

// Without a bound every size class would keep its own peak.
TEST(PooledAllocatorTest, VaryingLengthsDoNotAddUpTheirPeaks) {
  CountedPool pool;
  const Held held = RunSteps(pool, RandomLengths(/*count=*/500, 10'000, 100'000));
  EXPECT_LE(held.most_held, held.most_live * 3 / 2);
  EXPECT_EQ(pool.stats().live_bytes, 0);
  EXPECT_EQ(pool.stats().pooled_bytes, pool.held_bytes);
}

TEST(PooledAllocatorTest, TheCapCountsFreeBlocksToo) {
  constexpr int64_t kCap = 50 * kMebibyte;
  CountedPool pool(kCap);
  for (const int64_t mebibytes : {40, 48, 30, 20, 48}) {
    Blocks blocks(pool);
    blocks.Take(mebibytes * kMebibyte);
    EXPECT_LE(pool.held_bytes, kCap) << mebibytes;
  }
  // What is refused leaves the pool as it is.
  EXPECT_THROW(pool.Allocate(kCap + 1), Error);
  EXPECT_EQ(pool.stats().pooled_bytes, pool.held_bytes);
  EXPECT_EQ(pool.held_bytes, 48 * kMebibyte);
}

// Steps of one length, or of a few that fit the bound together: whatever the peak is counted from.
TEST(PooledAllocatorTest, LengthsThatComeAgainAskTheSystemForNothing) {
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{50'000}, {100'000, 30'000}, {100'000, 20'000, 10'000, 100'000}}) {
    CountedPool pool;
    RunSteps(pool, lengths);
    RunSteps(pool, lengths);
    const int64_t num_taken = pool.num_taken;
    const size_t num_given_back = pool.given_back.size();
    for (int i = 0; i < 10; ++i) {
      pool.ResetPeak();
      RunSteps(pool, lengths);
    }
    EXPECT_EQ(pool.num_taken, num_taken) << lengths.size();
    EXPECT_EQ(pool.given_back.size(), num_given_back) << lengths.size();
  }
}

TEST(PooledAllocatorTest, TheBlockUsedLongestAgoGoesFirst) {
  CountedPool pool;
  const auto use = [&](int64_t mebibytes) { Blocks(pool).Take(mebibytes * kMebibyte); };
  use(128);  // from now on up to 192 MiB are held
  use(20);
  use(24);
  use(20);
  EXPECT_THAT(pool.given_back, ::testing::IsEmpty());
  use(40);
  EXPECT_THAT(pool.given_back, ::testing::ElementsAre(128 * kMebibyte));
  use(128);
  EXPECT_THAT(pool.given_back, ::testing::ElementsAre(128 * kMebibyte, 24 * kMebibyte));
  EXPECT_EQ(pool.held_bytes, (20 + 40 + 128) * kMebibyte);
}

TEST(PooledAllocatorTest, WhatIsAtHandCostsNoOtherBlock) {
  CountedPool pool;
  Blocks(pool).Take(128 * kMebibyte);  // from now on up to 192 MiB are held
  EXPECT_TRUE(pool.HasAtHand(128 * kMebibyte));
  EXPECT_TRUE(pool.HasAtHand(64 * kMebibyte));
  EXPECT_FALSE(pool.HasAtHand(72 * kMebibyte));
  EXPECT_EQ(pool.num_taken, 1);
  EXPECT_THAT(pool.given_back, ::testing::IsEmpty());
  CountedPool capped(50 * kMebibyte);
  Blocks blocks(capped);
  blocks.Take(48 * kMebibyte);
  EXPECT_TRUE(capped.HasAtHand(2 * kMebibyte));
  EXPECT_FALSE(capped.HasAtHand(3 * kMebibyte));
}

// A question to a driver costs as much as a block of it.
TEST(PooledAllocatorTest, TheSystemIsAskedForRoomWhereThereIsSomethingToGiveBack) {
  CountedPool pool;
  Blocks blocks(pool);
  for (const int64_t num_bytes : {int64_t{64}, 4 * kMebibyte, 8 * kMebibyte}) blocks.Take(num_bytes);
  EXPECT_EQ(pool.num_asked, 0);
  blocks.GiveBack(1);
  blocks.Take(6 * kMebibyte);
  EXPECT_EQ(pool.num_asked, 1);
  EXPECT_THAT(pool.given_back, ::testing::IsEmpty());
}

// A driver has pages of 2 MiB, and gets none back by small blocks that share one.
TEST(PooledAllocatorTest, SmallBlocksMakeNoRoom) {
  CountedPool pool;
  {
    Blocks blocks(pool);
    for (const int64_t num_bytes : {int64_t{64}, kMebibyte, 8 * kMebibyte, int64_t{4096}, 2 * kMebibyte}) {
      blocks.Take(num_bytes);
    }
  }
  pool.has_room = false;
  Blocks blocks(pool);
  blocks.Take(128);
  EXPECT_THAT(pool.given_back, ::testing::ElementsAre(8 * kMebibyte, 2 * kMebibyte));
  pool.num_asked = 0;
  blocks.Take(256);
  blocks.Take(3 * kMebibyte);
  EXPECT_EQ(pool.given_back.size(), 2u);
  EXPECT_EQ(pool.num_asked, 0);
  EXPECT_EQ(pool.stats().pooled_bytes, 64 + 4096 + kMebibyte);
}

// Asks the pool, so that it finds out whether that is locked.
class Witness final : public BlockObserver {
 public:
  explicit Witness(const CountedPool& pool) : pool_(pool) {}
  void BlockGoes(const void* block) noexcept override {
    went.push_back(block);
    given_back_before.push_back(pool_.given_back.size());
    live_bytes = pool_.stats().live_bytes;
  }

  std::vector<const void*> went;
  std::vector<size_t> given_back_before;  // how many
  int64_t live_bytes = -1;

 private:
  const CountedPool& pool_;
};

TEST(PooledAllocatorTest, ObserversAreToldOfEachBlockBeforeItGoes) {
  constexpr int64_t kCap = 64 * kMebibyte;
  auto pool = std::make_unique<CountedPool>(kCap);
  const auto first = std::make_shared<Witness>(*pool);
  auto second = std::make_shared<Witness>(*pool);
  pool->AddObserver(first);
  pool->AddObserver(second);
  void* const a = pool->Allocate(40 * kMebibyte);
  void* const b = pool->Allocate(20 * kMebibyte);
  pool->Deallocate(a, 40 * kMebibyte);
  pool->Deallocate(b, 20 * kMebibyte);
  EXPECT_THAT(first->went, ::testing::IsEmpty());  // the pool keeps them
  void* const c = pool->Allocate(36 * kMebibyte);  // the oldest makes room
  EXPECT_THAT(first->went, ::testing::ElementsAre(a));
  EXPECT_EQ(first->live_bytes, 0);
  EXPECT_EQ(second->went, first->went);
  second.reset();  // is told no more
  pool->Deallocate(c, 36 * kMebibyte);
  pool.reset();
  EXPECT_THAT(first->went, ::testing::UnorderedElementsAre(a, b, c));
  EXPECT_THAT(first->given_back_before, ::testing::ElementsAre(0, 1, 2));
}

TEST(PooledAllocatorTest, ObserversAreToldOfWhatGoesWhereTheSystemHasNoMore) {
  CountedPool pool;
  const auto witness = std::make_shared<Witness>(pool);
  pool.AddObserver(witness);
  void* const block = pool.Allocate(kMebibyte);
  pool.Deallocate(block, kMebibyte);
  pool.is_exhausted = true;
  EXPECT_THROW(pool.Allocate(2 * kMebibyte), Error);
  EXPECT_THAT(witness->went, ::testing::ElementsAre(block));
  EXPECT_EQ(pool.stats().pooled_bytes, 0);
}

TEST(PooledAllocatorTest, ABlockIsAsLargeAsBlockBytesSays) {
  for (const int64_t num_bytes : {int64_t{0}, int64_t{1}, int64_t{64}, int64_t{513}, 3 * kMebibyte + 1}) {
    CountedPool pool;
    Blocks(pool).Take(num_bytes);
    EXPECT_EQ(PooledAllocator::BlockBytes(num_bytes), pool.held_bytes) << num_bytes;
  }
}

TEST(PooledAllocatorTest, ALittleIsHeldFreely) {
  CountedPool pool;
  for (int64_t kibibytes = 64; pool.held_bytes + kibibytes * 1024 <= PooledAllocator::kFreelyHeldBytes;
       kibibytes *= 2) {
    Blocks(pool).Take(kibibytes * 1024);
  }
  EXPECT_GT(pool.held_bytes, PooledAllocator::kFreelyHeldBytes / 2);
  EXPECT_THAT(pool.given_back, ::testing::IsEmpty());
}

}  // namespace
}  // namespace weft
