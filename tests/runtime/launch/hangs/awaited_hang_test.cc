// Hangs through asynchronous work: what a rank waits for in Work::Wait is explained as what it is blocked in.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/runtime/launch/hangs/told.h"

namespace weft {
namespace {

constexpr int kRanks = 3;
constexpr int kBlocks = 5;
constexpr uint8_t kGrad = 2;

// Where the stalled rank stands still, and what the others wait for then.
struct Stall {
  int rank = 0;
  bool backward = false;
  int block = 0;                // forward goes up, backward down
  bool waits_for_last = false;  // the others do not wait in the order of issue
};

// Bucket i is that of the i-th block that backward comes to; its elements are counted so that they differ.
std::string Bucket(int i) {
  return absl::StrCat("all_reduce(f32, sum, count ", 10 + i, ") #", i + 1, " on axis dp (gradient bucket ", i,
                      ", grad)");
}

std::string ExpectedLine(const Stall& stall) {
  // The first bucket that the stalled rank has not issued.
  const int first = stall.backward ? kBlocks - 1 - stall.block : 0;
  const int awaited = stall.waits_for_last ? kBlocks - 1 : first;
  const std::string others = stall.rank == 0 ? "ranks 1, 2" : stall.rank == 1 ? "ranks 0, 2" : "ranks 0, 1";
  const bool is_queued = awaited != first;
  return absl::StrCat("weft: waiting: ", others, " wait for ", Bucket(awaited), ", issued T s ago",
                      is_queued ? absl::StrCat(", queued behind ", Bucket(first)) : "", "; rank ", stall.rank,
                      " has not issued ", is_queued ? "that" : "it", ": it is in ",
                      stall.backward ? "backward" : "forward", " of blocks.", stall.block);
}

// One step of a model: forward, then backward, which issues a bucket after each block.
void Step(World& world, const Stall& stall, const Told& told) {
  FlightRecorder& recorder = world.flight_recorder();
  recorder.NamePurpose(kGrad, "grad");
  for (int i = 0; i < kBlocks; ++i) {
    recorder.NamePath(1 + i, absl::StrCat("blocks.", i));
    recorder.NamePath(100 + i, absl::StrCat("gradient bucket ", i));
  }
  FlightPlace place;
  recorder.WatchPlace(&place);
  const auto group = world.NewGroup("dp", {0, 1, 2});
  const std::shared_ptr<Worker> worker = world.StartWorker();
  const auto compute = [&](bool backward, int block) {
    place.in_backward = backward ? 1 : 0;
    place.path_id = 1 + block;
    if (world.rank() == stall.rank && backward == stall.backward && block == stall.block) {
      const std::string expected = ExpectedLine(stall);
      const bool is_told = told.Await([&](const std::string& line) { return line == expected; });
      EXPECT_TRUE(is_told) << "expected\n" << expected << "\ntold\n" << told.Text();
    }
    place.path_id = 0;
  };
  for (int block = 0; block < kBlocks; ++block) compute(/*backward=*/false, block);
  std::vector<Work> works;
  std::vector<Tensor> buckets;
  for (int i = 0; i < kBlocks; ++i) {
    compute(/*backward=*/true, kBlocks - 1 - i);
    buckets.push_back(Tensor::Empty(world.allocator(), DType::kF32, {10 + i}));
    std::fill_n(buckets.back().data<float>(), 10 + i, 1.0f);
    works.push_back(group->AllReduce(
        buckets.back(), buckets.back(), ReduceOp::kSum,
        {.async = true, .tag = {.purpose = kGrad, .path_id = 100 + i}, .worker = worker.get()}));
  }
  if (stall.waits_for_last) works.back().Wait();
  Work::WaitInOrder(works);
  for (const Tensor& bucket : buckets) EXPECT_EQ(bucket.data<float>()[0], kRanks);
  recorder.ForgetPlace(&place);
}

TEST(AwaitedHangTest, WhatIsAwaitedAndWhoStallsAreNamedWhereverThatIs) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const Stall stall = {.rank = static_cast<int>(random() % kRanks),
                         .backward = random() % 3 != 0,
                         .block = static_cast<int>(random() % kBlocks),
                         .waits_for_last = random() % 2 == 0};
    SCOPED_TRACE(ExpectedLine(stall));
    Told told;
    RunRanks(kRanks, [&](World& world) { Step(world, stall, told); },
             {.threads_per_rank = 1, .watchdog = told.Options()});
  }
}

// Rank 0 waits for what rank 1 would issue after a barrier that rank 0 would enter after its wait.
TEST(AwaitedHangTest, ADeadlockThroughAsynchronousWorkEnds) {
  Told told;
  const std::string message = MessageOf([&] {
    RunRanks(2,
             [](World& world) {
               const auto dp = world.NewGroup("dp", {0, 1});
               const auto tp = world.NewGroup("tp", {0, 1});
               const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {4});
               std::fill_n(tensor.data<float>(), 4, 1.0f);
               if (world.rank() == 1) tp->Barrier();
               dp->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}).Wait();
               if (world.rank() == 0) tp->Barrier();
             },
             {.watchdog = told.Options()});
  });
  EXPECT_NE(message.find("deadlock: "), std::string::npos) << message;
  const std::string from_0 = std::regex_replace(message, std::regex("[0-9]+\\.[0-9] s"), "T s");
  EXPECT_TRUE(
      from_0.find("rank 0 waits for all_reduce(f32, sum, count 4) #1 on axis dp, issued T s ago; rank 1 is "
                  "at barrier() #1 on axis tp") != std::string::npos ||
      from_0.find("rank 0 is waiting for all_reduce(f32, sum, count 4) #1 on axis dp while rank 1 waits in "
                  "barrier() #1 on axis tp") != std::string::npos)
      << from_0;
}

}  // namespace
}  // namespace weft
