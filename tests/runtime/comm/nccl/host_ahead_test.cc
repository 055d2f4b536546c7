// Verdicts on an operation of the `nccl` backend behind which the host has issued more than a log tells; what becomes of what
// the host has issued behind one that fails.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

constexpr int kNumAhead = 300;

Tensor Of(World& world, int64_t count) { return Tensor::Empty(world.allocator(), DType::kF32, {count}); }

TEST(NcclHostAheadTest, ADisagreementIsFoundWhateverCameAfter) {
  const auto body = [](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const Tensor tensor = Of(world, 4 + world.rank());
    const Tensor small = Of(world, 1);
    const std::string message = InvalidArgumentMessage([&] {
      std::vector<Work> works;
      works.push_back(group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}));
      for (int i = 0; i < kNumAhead; ++i) {
        works.push_back(group->AllReduce(small, small, ReduceOp::kSum, {.async = true}));
      }
      works.front().Wait();
      works.back().Wait();
      group->Barrier();
    });
    EXPECT_EQ(message,
              "group 'dp', collective #1: rank 0 called all_reduce(f32, sum, count 4), rank 1 called "
              "all_reduce(f32, sum, count 5)");
  };
  RunNcclRanks(2, body, std::make_shared<FakeNccl>(), /*comm_timeout=*/std::chrono::seconds(30));
}

TEST(NcclHostAheadTest, WhoReceivesNothingIsMissing) {
  std::atomic<bool> is_told = false;
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("pp", {0, 1});
    if (world.rank() == 1) {
      while (!is_told) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const Tensor tensor = Of(world, 4);
    const std::string message = MessageOf([&] {
      for (int i = 0; i < kNumAhead; ++i) group->Send(tensor, 1, {.async = true});
      group->Barrier();
    });
    is_told = true;
    EXPECT_EQ(message,
              "group 'pp', send_recv #1: world rank 0 waited 1000 ms; world ranks [1] have not arrived");
  };
  RunNcclRanks(2, body, std::make_shared<FakeNccl>(), /*comm_timeout=*/std::chrono::seconds(1));
}

// Also of a group that its user has dropped.
TEST(NcclHostAheadTest, WhoReadsWhatWasCutOffCanFindOut) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  const auto body = [&](World& world) {
    auto group = world.NewGroup("grad", {0, 1});
    const Tensor tensor = Of(world, 4);
    AllReduceUntilAborted(world, *fake, *group, tensor);
    group.reset();
    EXPECT_EQ(MessageOf([&] { world.ThrowIfCutOff(); }), "no error");
    both.arrive_and_wait();
    fake->SetAsyncError(world.rank(), NcclResult::kRemoteError);
    OnHost(tensor);
    EXPECT_THAT(MessageOf([&] { world.ThrowIfCutOff(); }), testing::HasSubstr("group 'grad'"));
  };
  RunNcclRanks(2, body, fake);
}

// What was over before is good.
TEST(NcclHostAheadTest, NothingIsCutOffOfAGroupThatEndsIdle) {
  const auto fake = std::make_shared<FakeNccl>();
  std::barrier both(2);
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("grad", {0, 1});
    const Tensor tensor = Of(world, 4);
    group->AllReduce(tensor, tensor, ReduceOp::kSum);
    OnHost(tensor);
    both.arrive_and_wait();
    fake->SetAsyncError(world.rank(), NcclResult::kRemoteError);
    // The monitor ends the group, whatever is called on it.
    while (fake->NumAborted() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(MessageOf([&] { world.ThrowIfCutOff(); }), "no error");
  };
  RunNcclRanks(2, body, fake);
}

// It touches no tensor: what a rank has that waits in vain for the others is good.
TEST(NcclHostAheadTest, ABarrierThatIsCutOffSpoilsNothing) {
  std::atomic<bool> is_told = false;
  const auto body = [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    if (world.rank() == 1) {
      while (!is_told) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    const std::string message = MessageOf([&] { group->Barrier(); });
    is_told = true;
    EXPECT_THAT(message, testing::HasSubstr("world rank 0 waited 1000 ms; world ranks [1] have not arrived"));
    EXPECT_EQ(MessageOf([&] { world.ThrowIfCutOff(); }), "no error");
  };
  RunNcclRanks(2, body, std::make_shared<FakeNccl>(), /*comm_timeout=*/std::chrono::seconds(1));
}

}  // namespace
}  // namespace weft
