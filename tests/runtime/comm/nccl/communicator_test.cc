// What the `nccl` backend promises beyond the contract.

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/device/allocator.h"
#include "runtime/device/cuda/stream.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/runtime/comm/nccl/nccl_calls.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

TEST(NcclCommunicatorTest, ABlockingCallDoesNotWaitForItsPeers) {
  RunNcclRanks(2, [](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const auto gate = world.NewGroup("gate", {0, 1});
    const Tensor tensor = Of(world, {1});
    if (world.rank() == 0) {
      group->AllReduce(tensor, tensor, ReduceOp::kSum);  // the other comes after the gate alone
      gate->Barrier();
    } else {
      gate->Barrier();
      group->AllReduce(tensor, tensor, ReduceOp::kSum);
    }
    EXPECT_EQ(tensor.ToVector<float>(), Values{2});
  });
}

TEST(NcclCommunicatorTest, AWorkHoldsItsBuffersUntilItHasBeenWaitedFor) {
  RunNcclRanks(2, [](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const auto gate = world.NewGroup("gate", {0, 1});
    const Tensor tensor = Of(world, {1, 2});
    if (world.rank() == 1) gate->Barrier();
    const Work work = group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
    if (world.rank() == 0) {
      EXPECT_GT(tensor.buffer()->use_count(), 1);  // the other comes after the gate alone
      gate->Barrier();
    }
    work.Wait();
    EXPECT_EQ(tensor.buffer()->use_count(), 1);
    group->AllReduce(tensor, tensor, ReduceOp::kSum);
    EXPECT_EQ(tensor.buffer()->use_count(), 1);
    EXPECT_EQ(tensor.ToVector<float>(), (Values{4, 8}));
  });
}

TEST(NcclCommunicatorTest, AWorkThatWasDroppedLetsGoOfItsBuffers) {
  RunNcclRanks(2, [](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const Tensor tensor = Of(world, {1});
    group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
    group->Barrier();
    EXPECT_EQ(tensor.buffer()->use_count(), 1);
  });
}

TEST(NcclCommunicatorTest, TensorsOnTheCpuGoByWayOfTheGpu) {
  RunNcclRanks(2, [](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const float me = static_cast<float>(world.rank());
    const Tensor sum = Tensor::FromValues<float>({2}, Values{me, 1});
    group->AllReduce(sum, sum, ReduceOp::kSum);
    EXPECT_EQ(sum.ToVector<float>(), (Values{1, 2}));
    const Tensor told = Tensor::FromValues<float>({1}, Values{me});
    group->Broadcast(told, 1);
    EXPECT_EQ(told.ToVector<float>(), Values{1});
    const Tensor received = Tensor::FromValues<float>({1}, Values{7});
    const int peer = 1 - world.rank();
    group->SendRecv({{{peer, Tensor::FromValues<float>({1}, Values{me})}}}, {{{peer, received}}});
    EXPECT_EQ(received.ToVector<float>(), Values{static_cast<float>(peer)});
  });
}

// Nor do those of tensors on the CPU.
TEST(NcclCommunicatorTest, AveragesOfSmallIntegersDoNotWrap) {
  RunNcclRanks(3, [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    for (const std::shared_ptr<Allocator>& allocator : {world.allocator(), MakeCpuAllocator()}) {
      const std::vector<uint8_t> bytes = {200, 255};
      const Tensor u8 = Tensor::FromValues<uint8_t>({2}, bytes, allocator);
      group->AllReduce(u8, u8, ReduceOp::kAvg);
      EXPECT_EQ(u8.ToVector<int>(), (std::vector<int>{200, 255}));
      const std::vector<int32_t> ints = {2000000000, -2000000000};
      const Tensor i32 = Tensor::FromValues<int32_t>({2}, ints, allocator);
      group->AllReduce(i32, i32, ReduceOp::kAvg);
      EXPECT_EQ(i32.ToVector<int32_t>(), ints);
    }
  });
}

// Its way through i64 included: the work ends with it, and knows of its error.
TEST(NcclCommunicatorTest, AnAverageOfIntegersIsUnderWayUntilItsPeersHaveCome) {
  std::barrier all(2);
  RunNcclRanks(2, [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const auto gate = world.NewGroup("gate", {0, 1});
    const std::vector<int32_t> ints = {2000000000, -2000000000};
    const Tensor tensor = Tensor::FromValues<int32_t>({2}, ints, world.allocator());
    if (world.rank() == 1) gate->Barrier();
    const Work work = group->AllReduce(tensor, tensor, ReduceOp::kAvg, {.async = true});
    if (world.rank() == 0) {
      EXPECT_FALSE(work.Test());  // the other comes after the gate alone
      gate->Barrier();
    }
    work.Wait();
    EXPECT_EQ(tensor.ToVector<int32_t>(), ints);
    if (world.rank() == 1) {
      all.arrive_and_wait();
      group->Abort("enough");
      return;
    }
    const Work alone = group->AllReduce(tensor, tensor, ReduceOp::kAvg, {.async = true});
    all.arrive_and_wait();
    ExpectContains(ErrorOf(absl::StatusCode::kAborted, [&] { alone.WaitFor(std::chrono::minutes(1)); }),
                   {"enough"});
  });
}

// The monitors' and the ranks' alike: otherwise each process has a context on GPU 0.
TEST(NcclCommunicatorTest, EveryThreadCallsCudaOnItsRanksDevice) {
  const int64_t before = cuda_emulator::NumCallsFromOtherDevices();
  std::barrier all(3);
  RunNcclRanks(3, [&](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const Tensor tensor = Of(world, {1});
    // Several rounds of the monitors, which ask for the operation's events.
    if (world.rank() == 0) std::this_thread::sleep_for(milliseconds(50));
    group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true}).WaitFor(std::chrono::minutes(1));
    all.arrive_and_wait();
    EXPECT_EQ(cuda_emulator::NumCallsFromOtherDevices(), before);
    all.arrive_and_wait();
  });
}

TEST(NcclCommunicatorTest, EveryCommunicatorIsLeftInOrder) {
  const auto fake = std::make_shared<FakeNccl>();
  RunNcclRanks(
      3,
      [](World& world) {
        const auto group = world.NewGroup("dp", AllRanks(world));
        for (int i = 0; i < 3; ++i) world.NewGroup("short", AllRanks(world))->Barrier();
        group->Barrier();
      },
      fake);
  EXPECT_EQ(fake->NumLive(), 0);
  EXPECT_EQ(fake->NumAborted(), 0);
}

TEST(NcclCommunicatorTest, ADisagreementEndsLongBeforeTheTimeout) {
  const auto begin = std::chrono::steady_clock::now();
  RunNcclRanks(2, [](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const Tensor tensor = Of(world, Values(4 + world.rank(), 1));
    const std::string message = ErrorOf(absl::StatusCode::kInvalidArgument, [&] {
      group->AllReduce(tensor, tensor, ReduceOp::kSum);
      BlockUntilItEnds(*group);
    });
    ExpectContains(message, {"group 'dp', collective #1", "rank 0 called all_reduce(f32, sum, count 4)",
                             "rank 1 called all_reduce(f32, sum, count 5)"});
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(NcclCommunicatorTest, AbortWhileEverybodyWaitsReleasesTheStreams) {
  std::barrier all(2);
  RunNcclRanks(2, [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const Tensor tensor = Of(world, {1});
    if (world.rank() == 1) {
      all.arrive_and_wait();
      std::this_thread::sleep_for(milliseconds(30));
      group->Abort("enough");
      return;
    }
    group->AllReduce(tensor, tensor, ReduceOp::kSum);
    all.arrive_and_wait();
    tensor.ToVector<float>();  // blocks in the device, not in Weft
    ExpectContains(ErrorOf(absl::StatusCode::kAborted, [&] { group->Barrier(); }), {"enough"});
  });
}

// Ranks 0 and 2 wait for rank 1, which does not come. Returns the error of rank 0.
std::string ErrorOfATimeout(milliseconds timeout) {
  std::string error;
  RunNcclRanks(3, [&](World& world) {
    const auto gate = world.NewGroup("gate", AllRanks(world));
    const auto group = world.NewGroup("dp", AllRanks(world));
    group->set_timeout(timeout);
    const Tensor tensor = Of(world, {1});
    if (world.rank() == 1) {
      gate->Barrier();
      ErrorOf(absl::StatusCode::kDeadlineExceeded, [&] { BlockUntilItEnds(*group); });
      return;
    }
    const Work work = group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
    const std::string message = ErrorOf(absl::StatusCode::kDeadlineExceeded, [&] {
      EXPECT_FALSE(work.WaitFor(milliseconds(1)));
      work.WaitFor(std::chrono::minutes(1));
    });
    ExpectContains(message, {"group 'dp', collective #1, all_reduce(f32, sum, count 1)",
                             absl::StrCat("waited ", timeout.count(), " ms")});
    if (world.rank() == 0) error = message;
    EXPECT_TRUE(work.Test());
    gate->Barrier();
  });
  return error;
}

// On a busy machine rank 0 or 2 may not come in time either, and is named rightly. Then the timeout was too
// short.
TEST(NcclCommunicatorTest, TheTimeoutNamesWhoIsMissing) {
  milliseconds timeout(100);
  std::string error = ErrorOfATimeout(timeout);
  while (error.find("world ranks [0, 1] have not arrived") != std::string::npos ||
         error.find("world ranks [1, 2] have not arrived") != std::string::npos) {
    ASSERT_LT(timeout, std::chrono::seconds(10)) << error;
    timeout *= 4;
    error = ErrorOfATimeout(timeout);
  }
  ExpectContains(error, {"world ranks [1] have not arrived"});
}

TEST(NcclCommunicatorTest, WhoWaitsForARankThatHasEndedIsTold) {
  std::optional<Work> orphan;
  RunNcclRanks(3, [&](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    const auto pair = world.rank() == 1 ? nullptr : world.NewGroup("pp", {0, 2});
    if (world.rank() == 2) return;
    if (world.rank() == 0) {
      orphan = pair->Recv(Of(world, {0}), 1, {.async = true});
      return;
    }
    ExpectContains(ErrorOf(absl::StatusCode::kAborted, [&] { group->Barrier(); }),
                   {"world ranks [", "whose rank function has returned"});
  });
  ErrorOf(absl::StatusCode::kAborted, [&] { orphan->Wait(); });
}

TEST(NcclCommunicatorTest, MembersThatNameAGroupDifferentlyAreTold) {
  RunNcclRanks(2, [](World& world) {
    try {
      world.NewGroup(world.rank() == 0 ? "dp" : "tp", {0, 1});
      ADD_FAILURE() << "it cannot have worked";
    } catch (const Error& error) {
      ExpectContains(error.message(), {"rank 1 names the group 'tp', rank 0 'dp'", "in the same order"});
    }
  });
}

TEST(NcclCommunicatorTest, ARankThatNeverMakesTheGroupIsToldToWhoWaits) {
  RunNcclRanks(2, [](World& world) {
    if (world.rank() == 1) return;
    ExpectContains(ErrorOf(absl::StatusCode::kAborted,
                           [&] {
                             world.NewGroup("dp", {0, 1});
                           }),
                   {"new group 'dp'", "world ranks [1], whose rank function has returned"});
  });
}

TEST(NcclCommunicatorTest, AnExceptionWithWorkInFlightUnwindsAtOnce) {
  const auto fake = std::make_shared<FakeNccl>();
  const auto body = [](World& world) {
    const auto group = world.NewGroup("dp", AllRanks(world));
    for (int i = 0; i < 20; ++i) {
      const Tensor tensor = Of(world, Values(1000, 1));
      group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
      if (world.rank() == 2 && i == 10) throw std::out_of_range("lost");
    }
    BlockUntilItEnds(*group);
  };
  EXPECT_THROW(RunNcclRanks(3, body, fake), std::out_of_range);
  EXPECT_EQ(fake->NumLive(), 0);
}

}  // namespace
}  // namespace weft
