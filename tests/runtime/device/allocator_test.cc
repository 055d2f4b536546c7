#include "runtime/device/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/device/pooled_allocator.h"

// Read by the sanitizers: a request too large returns null, as it does without them. Unused otherwise.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSizes[] = {0,    1,    63,   64,    65,      127,           128,           511,
                              512,  513,  576,  577,   1023,    1024,          1025,          4096,
                              4097, 5000, 9999, 65537, 1 << 20, (2 << 20) - 1, (2 << 20) + 1, (3 << 20) + 7};

int64_t Rounded(int64_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

template <class Call>
Error ErrorOf(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return Error(absl::StatusCode::kOk, "nothing was thrown");
}

TEST(CpuAllocator, BlocksAreAlignedWritableAndDisjoint) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  EXPECT_EQ(allocator->device(), Device{DeviceType::kCpu});
  // Twice: the second round comes from the pool.
  for (int round = 0; round < 2; ++round) {
    std::vector<char*> blocks;
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      blocks.push_back(static_cast<char*>(allocator->Allocate(kSizes[i])));
      ASSERT_NE(blocks[i], nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(blocks[i]) % 64, 0u);
      std::memset(blocks[i], static_cast<int>(i + 1), kSizes[i]);
    }
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      const auto intact = [&](char byte) { return byte == static_cast<char>(i + 1); };
      ASSERT_TRUE(std::all_of(blocks[i], blocks[i] + kSizes[i], intact)) << kSizes[i];
      allocator->Deallocate(blocks[i], kSizes[i]);
    }
  }
}

TEST(CpuAllocator, LargeBlocksAreAlignedToHugePages) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  void* const block = allocator->Allocate(5 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % (2 << 20), 0u);
  allocator->Deallocate(block, 5 << 20);
}

TEST(CpuAllocator, CountsLiveAndPeakBytes) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  EXPECT_EQ(allocator->stats(), AllocatorStats());
  void* const a = allocator->Allocate(100);
  void* const b = allocator->Allocate(0);
  void* const c = allocator->Allocate(64);
  EXPECT_EQ(allocator->stats(), (AllocatorStats{.live_bytes = 192, .peak_bytes = 192, .num_allocations = 3}));
  allocator->Deallocate(a, 100);
  EXPECT_EQ(allocator->stats(),
            (AllocatorStats{.live_bytes = 64, .peak_bytes = 192, .pooled_bytes = 128, .num_allocations = 3}));
  allocator->ResetPeak();
  EXPECT_EQ(allocator->stats().peak_bytes, 64);
  void* const d = allocator->Allocate(120);
  EXPECT_EQ(allocator->stats(), (AllocatorStats{.live_bytes = 192, .peak_bytes = 192, .num_allocations = 4}));
  for (auto [block, num_bytes] : {std::pair{b, 0}, {c, 64}, {d, 120}})
    allocator->Deallocate(block, num_bytes);
  EXPECT_EQ(allocator->stats().live_bytes, 0);
}

TEST(CpuAllocator, PooledBlocksWasteAtMostAnEighth) {
  std::mt19937_64 random(3);
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  int64_t before = 0;
  for (int i = 0; i < 500; ++i) {
    const int64_t num_bytes =
        static_cast<int64_t>(random() >> (43 + random() % 18));  // up to 2 MiB, log-uniform
    const int64_t live_pool = allocator->stats().pooled_bytes;
    void* const block = allocator->Allocate(num_bytes);
    const bool reused = allocator->stats().pooled_bytes < live_pool;
    allocator->Deallocate(block, num_bytes);
    const int64_t after = allocator->stats().pooled_bytes;
    if (reused) {
      ASSERT_EQ(after, live_pool);
    } else {
      const int64_t size = std::max<int64_t>(Rounded(num_bytes), 64);
      ASSERT_GE(after - before, size);
      ASSERT_LE(after - before, std::max(size, size * 9 / 8)) << num_bytes;
    }
    before = after;
  }
}

// What a training step asks for twice, the second step finds in the pool.
TEST(CpuAllocator, SecondStepAsksTheSystemForNothing) {
  std::mt19937 random(5);
  std::vector<int64_t> sizes;
  for (int i = 0; i < 200; ++i) sizes.push_back(random() % 200'000);
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  const auto step = [&] {
    std::vector<std::pair<void*, int64_t>> live;
    for (int64_t size : sizes) {
      live.emplace_back(allocator->Allocate(size), size);
      if (size % 3 == 0) {
        allocator->Deallocate(live.front().first, live.front().second);
        live.erase(live.begin());
      }
    }
    for (auto [block, size] : live) allocator->Deallocate(block, size);
  };
  step();
  const AllocatorStats first = allocator->stats();
  step();
  const AllocatorStats second = allocator->stats();
  EXPECT_EQ(first.pooled_bytes, second.pooled_bytes);
  EXPECT_EQ(first.peak_bytes, second.peak_bytes);
  EXPECT_EQ(second.num_allocations, 400);
}

TEST(CpuAllocator, TakesBlocksBackFromAnotherThread) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  void* const block = allocator->Allocate(1000);
  std::thread([&] { allocator->Deallocate(block, 1000); }).join();
  EXPECT_EQ(allocator->stats().live_bytes, 0);
  EXPECT_EQ(allocator->Allocate(1000), block);
  allocator->Deallocate(block, 1000);
}

// The owner allocates and writes, two peers read and free, all at the same time.
TEST(CpuAllocator, RemoteFreesRaceWithTheOwner) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<int64_t*> queue;
  bool ended = false;
  const auto consume = [&](int64_t* sum) {
    while (true) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return ended || !queue.empty(); });
      if (queue.empty()) return;
      int64_t* const block = queue.front();
      queue.pop_front();
      lock.unlock();
      *sum += block[0] + block[15];
      allocator->Deallocate(block, 128);
    }
  };
  int64_t sums[2] = {0, 0};
  std::thread first(consume, &sums[0]);
  std::thread second(consume, &sums[1]);
  for (int64_t i = 0; i < 5000; ++i) {
    int64_t* const block = static_cast<int64_t*>(allocator->Allocate(128));
    int64_t* const own = static_cast<int64_t*>(allocator->Allocate(128));
    block[0] = block[15] = i;
    own[0] = -1;
    {
      std::lock_guard<std::mutex> lock(mutex);
      queue.push_back(block);
    }
    changed.notify_one();
    allocator->Deallocate(own, 128);
  }
  {
    std::lock_guard<std::mutex> lock(mutex);
    ended = true;
  }
  changed.notify_all();
  first.join();
  second.join();
  EXPECT_EQ(sums[0] + sums[1], 2 * (4999 * 5000 / 2));
  EXPECT_EQ(allocator->stats().live_bytes, 0);
}

TEST(CpuAllocator, ExhaustionNamesRequestLiveAndPeak) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  void* const block = allocator->Allocate(1024);
  allocator->Deallocate(allocator->Allocate(64), 64);
  // Beyond any address space, and within 48 bits but more than any machine gives.
  for (int64_t num_bytes : {int64_t{1} << 50, int64_t{1} << 47}) {
    const Error error = ErrorOf([&] { allocator->Allocate(num_bytes); });
    EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(error.message(), AllOf(HasSubstr(std::to_string(num_bytes)), HasSubstr("live 1024 bytes"),
                                       HasSubstr("peak 1088 bytes")));
  }
  // The pool was given up in the attempt; the allocator goes on.
  EXPECT_EQ(allocator->stats().pooled_bytes, 0);
  EXPECT_EQ(allocator->stats().num_allocations, 2);
  allocator->Deallocate(block, 1024);
  EXPECT_EQ(allocator->Allocate(1024), block);
  allocator->Deallocate(block, 1024);
}

// Labels whose current one a test sets; the names are "m0", "m1", ..., but for what is nobody's.
class FakeLabels : public BlockLabels {
 public:
  explicit FakeLabels(std::string prefix) : prefix_(std::move(prefix)) {}
  int Current() const override { return current; }
  std::string Name(int label) const override { return label == 0 ? "" : prefix_ + std::to_string(label); }
  int current = 0;

 private:
  const std::string prefix_;
};

constexpr int64_t kMebibyte = 1 << 20;

// What the error for lack of memory says of the largest blocks.
std::string LargestOf(Allocator& allocator) {
  const std::string message = ErrorOf([&] { allocator.Allocate(int64_t{1} << 50); }).message();
  const size_t place = message.find("; largest: ");
  return place == std::string::npos ? "" : message.substr(place + 11);
}

// Blocks that a test gives back at its end.
class Blocks {
 public:
  explicit Blocks(Allocator& allocator) : allocator_(allocator) {}
  ~Blocks() {
    for (const auto& [block, num_bytes] : blocks_) allocator_.Deallocate(block, num_bytes);
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

TEST(LabelledBlocks, TheErrorAddsThemUpAndNamesTheLargest) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  Blocks blocks(*allocator);
  EXPECT_EQ(LargestOf(*allocator), "");
  blocks.Take(3 * kMebibyte / 2);
  EXPECT_EQ(LargestOf(*allocator), "1.5 MiB elsewhere (1 tensor)");
  const auto labels = std::make_shared<FakeLabels>("m");
  LabelBlocks(*allocator, labels);
  labels->current = 3;
  blocks.Take(kMebibyte);
  blocks.Take(3 * kMebibyte);
  labels->current = 1;
  blocks.Take(2 * kMebibyte);
  blocks.Take(kMebibyte - 1);  // too small to be written down
  labels->current = 0;
  blocks.Take(kMebibyte);
  EXPECT_EQ(LargestOf(*allocator),
            "4 MiB in m3 (2 tensors), 2.5 MiB elsewhere (2 tensors), 2 MiB in m1 (1 tensor)");
  blocks.GiveBack(2);
  EXPECT_EQ(LargestOf(*allocator),
            "2.5 MiB elsewhere (2 tensors), 2 MiB in m1 (1 tensor), 1 MiB in m3 (1 tensor)");
  // From the pool, under another label.
  labels->current = 2;
  blocks.Take(3 * kMebibyte);
  EXPECT_EQ(LargestOf(*allocator).substr(0, 20), "3 MiB in m2 (1 tenso");
  for (const int label : {7, 6, 5}) {
    labels->current = label;
    blocks.Take(kMebibyte);
  }
  // Five at most; of equals those whose name comes first.
  EXPECT_EQ(LargestOf(*allocator),
            "3 MiB in m2 (1 tensor), 2.5 MiB elsewhere (2 tensors), 2 MiB in m1 (1 tensor), 1 MiB in m3 (1 "
            "tensor), 1 MiB in m5 (1 tensor)");
}

TEST(LabelledBlocks, UnderASmallCapSmallBlocksAreNamedToo) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator(/*cap_bytes=*/64 << 10);
  Blocks blocks(*allocator);
  const auto labels = std::make_shared<FakeLabels>("m");
  LabelBlocks(*allocator, labels);
  labels->current = 1;
  blocks.Take(1023);  // below a 64th
  blocks.Take(1024);
  blocks.Take(60 << 10);
  EXPECT_THAT(ErrorOf([&] { allocator->Allocate(4096); }).message(),
              HasSubstr(", cap 65536 bytes; largest: 61 KiB in m1 (2 tensors)"));
}

TEST(LabelledBlocks, OtherThreadsHaveNoLabel) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  Blocks blocks(*allocator);
  const auto labels = std::make_shared<FakeLabels>("m");
  LabelBlocks(*allocator, labels);
  labels->current = 1;
  std::thread([&] { blocks.Take(2 * kMebibyte); }).join();
  blocks.Take(kMebibyte);
  EXPECT_EQ(LargestOf(*allocator), "2 MiB elsewhere (1 tensor), 1 MiB in m1 (1 tensor)");
}

// What was labelled before keeps its name, though nobody else has it any more.
TEST(LabelledBlocks, NamesOutliveTheLabels) {
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  Blocks blocks(*allocator);
  auto labels = std::make_shared<FakeLabels>("early");
  LabelBlocks(*allocator, labels);
  labels->current = 2;
  blocks.Take(3 * kMebibyte);
  const std::weak_ptr<FakeLabels> early = labels;
  labels = std::make_shared<FakeLabels>("late");
  LabelBlocks(*allocator, labels);
  EXPECT_TRUE(early.expired());
  labels->current = 1;
  blocks.Take(2 * kMebibyte);
  LabelBlocks(*allocator, nullptr);
  blocks.Take(kMebibyte);
  EXPECT_EQ(LargestOf(*allocator),
            "3 MiB in early2 (1 tensor), 2 MiB in late1 (1 tensor), 1 MiB elsewhere (1 tensor)");
  LabelBlocks(*MakeMetaAllocator(), labels);  // which never runs out
}

TEST(Allocators, RefuseNegativeSizes) {
  for (const auto& allocator : {MakeCpuAllocator(), MakeMetaAllocator()}) {
    const Error error = ErrorOf([&] { allocator->Allocate(-5); });
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("at least 0 bytes, got -5"));
  }
}

// Memory predicted on meta is memory used on the CPU.
TEST(Allocators, MetaCountsWhatTheCpuUses) {
  const std::shared_ptr<Allocator> cpu = MakeCpuAllocator();
  const std::shared_ptr<Allocator> meta = MakeMetaAllocator();
  EXPECT_EQ(meta->device(), Device{DeviceType::kMeta});
  std::mt19937 random(7);
  std::vector<std::pair<void*, int64_t>> live;
  for (int i = 0; i < 1000; ++i) {
    if (live.empty() || random() % 3 != 0) {
      const int64_t num_bytes = random() % 3000;
      EXPECT_EQ(meta->Allocate(num_bytes), nullptr);
      live.emplace_back(cpu->Allocate(num_bytes), num_bytes);
    } else {
      const auto [block, num_bytes] = live.back();
      live.pop_back();
      cpu->Deallocate(block, num_bytes);
      meta->Deallocate(nullptr, num_bytes);
    }
    if (i == 500) {
      cpu->ResetPeak();
      meta->ResetPeak();
    }
    AllocatorStats expected = cpu->stats();
    expected.pooled_bytes = 0;
    ASSERT_EQ(meta->stats(), expected);
  }
  for (auto [block, num_bytes] : live) cpu->Deallocate(block, num_bytes);
}

TEST(MetaAllocator, HoldsWhatNoMachineCould) {
  const std::shared_ptr<Allocator> meta = MakeMetaAllocator();
  EXPECT_EQ(meta->Allocate(int64_t{1} << 55), nullptr);
  EXPECT_EQ(meta->stats().live_bytes, int64_t{1} << 55);
  meta->Deallocate(nullptr, int64_t{1} << 55);
  EXPECT_EQ(meta->stats().live_bytes, 0);
  EXPECT_EQ(meta->stats().peak_bytes, int64_t{1} << 55);
}

}  // namespace
}  // namespace weft
