// What of a group's operations a rank's stream stands still for is exposed in its ledger; what has ended before the stream
// comes to it is not. The peer comes late by a delay that is measured while the stream waits.

#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/comm/flight_clock.h"
#include "runtime/device/cuda/stream.h"
#include "runtime/tensor/cuda/tensor_stream.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

constexpr int64_t kDelayNs = 20'000'000;
constexpr double kRoundingNs = 1e4;  // of an event's time, a float of milliseconds

Tensor Ones(World& world) {
  return Tensor::FromValues<float>({4}, std::vector<float>(4, 1.0f), world.allocator());
}

struct Case {
  bool async = false;
  bool in_background = false;
};

void ExpectStall(const Case& how) {
  SCOPED_TRACE(testing::Message() << "async " << how.async << ", in background " << how.in_background);
  std::latch has_issued(2);
  std::shared_ptr<CudaEvent> behind;  // of rank 0's stream: behind its wait
  RunNcclRanks(2, [&](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    if (how.in_background) group->SetInBackground();
    const Tensor tensor = Ones(world);
    CudaStreamOf(tensor).Synchronize();
    if (world.rank() == 1) {
      has_issued.arrive_and_wait();
      // An emulated stream moves on by a step when it is asked: it stands at its wait then.
      for (int i = 0; i < 1000; ++i) ASSERT_FALSE(behind->Test());
      const int64_t from_ns = FlightClock();
      while (FlightClock() < from_ns + kDelayNs) std::this_thread::yield();
      group->AllReduce(tensor, tensor, ReduceOp::kSum);
      CudaStreamOf(tensor).Synchronize();
      return;
    }
    world.ledger().Clear();
    const int64_t begun_ns = FlightClock();
    group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = how.async}).Wait();
    behind = std::make_shared<CudaEvent>();
    behind->Record(CudaStreamOf(tensor));
    has_issued.arrive_and_wait();
    EXPECT_EQ(world.ledger().exposed(), Ledger::Exposed());  // nothing has ended
    CudaStreamOf(tensor).Synchronize();
    const double most_ns = static_cast<double>(FlightClock() - begun_ns);
    const Ledger::Exposed exposed = world.ledger().exposed();
    EXPECT_EQ(exposed.waiting_seconds, 0);  // nobody can tell
    EXPECT_GE(exposed.seconds() * 1e9, kDelayNs - kRoundingNs);
    EXPECT_LE(exposed.seconds() * 1e9, most_ns + kRoundingNs);
    EXPECT_EQ(world.ledger().exposed(), exposed);  // each stall counts once
  });
}

// A lane's too: it is the rank's stream that stands still.
TEST(StreamStallsTest, APeerThatIsLateIsExposed) {
  ExpectStall({.async = true});
  ExpectStall({.async = false});
  ExpectStall({.async = true, .in_background = true});
}

TEST(StreamStallsTest, WhatHasEndedBeforeTheStreamComesToItIsNot) {
  RunNcclRanks(2, [](World& world) {
    const auto group = world.NewGroup("dp", {0, 1});
    const Tensor tensor = Ones(world);
    for (int i = 0; i < 3; ++i) {
      const Work work = group->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
      while (!work.Test()) std::this_thread::yield();
      work.Wait();
      CudaStreamOf(tensor).Synchronize();
    }
    EXPECT_EQ(world.ledger().exposed(), Ledger::Exposed());
  });
}

}  // namespace
}  // namespace weft
