// Training steps under plans that gather ahead and reduce in buckets, on emulated GPUs over a fake NCCL: what runs
// beside the rank's stream gives the bits of what it waits for at once.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/scheduler/task_graph.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/parallel/scheduler/cuda_training.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using cuda_emulator::LeftOut;

TEST(CudaSchedulerTest, OverlapChangesNoBit) {
  for (const CudaCase& of : CudaCases()) {
    const std::vector<double> expected = TrainOnGpus(of, /*overlap=*/false);
    ASSERT_GT(expected.size(), 8u);
    EXPECT_GT(std::abs(expected[6] - expected[0]), 1e-4) << of.name << ": the steps change nothing";
    EXPECT_EQ(TrainOnGpus(of, /*overlap=*/true), expected) << of.name;
  }
}

// The fake shows where memory is given back that is registered, or registered on some ranks alone.
TEST(CudaSchedulerTest, RegisteredMemoryChangesNoBit) {
  for (const CudaCase& of : CudaCases()) {
    const auto fake = std::make_shared<FakeNccl>();
    const std::vector<double> expected = TrainOnGpus(of, /*overlap=*/true);
    EXPECT_EQ(TrainOnGpus(of, /*overlap=*/true, /*num_steps=*/4, fake), expected) << of.name;
    EXPECT_GT(fake->NumRegistrations(), 0) << of.name;
    EXPECT_EQ(fake->NumDeregistrations(), fake->NumRegistrations()) << of.name;
  }
}

// What streams wait for each other for: neither can be left out under any plan.
TEST(CudaSchedulerTest, WaitsLeftOutAreSeen) {
  for (const CudaCase& of : CudaCases()) {
    const std::vector<double> expected = TrainOnGpus(of, /*overlap=*/true);
    for (const LeftOut waits : {LeftOut::kWaitsOfFirst, LeftOut::kWaitsOfOthers}) {
      EXPECT_TRUE(
          cuda_emulator::ShowsInSomeRun(waits, /*only=*/-1, [&] { return !HasOutcome(of, expected); }))
          << of.name << (waits == LeftOut::kWaitsOfFirst ? ": of the rank's stream" : ": of lanes' streams");
      EXPECT_GT(cuda_emulator::NumLeftOut(), 0) << of.name;
      cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
    }
  }
}

// What the rank's stream waits for of each other one, of lanes and of the group of blocking collectives, and what lanes and
// groups wait for of the rank's stream and of each other.
TEST(CudaSchedulerTest, WaitsForEachStreamLeftOutAreSeen) {
  for (const CudaCase& of : CudaCases()) {
    const std::vector<double> expected = TrainOnGpus(of, /*overlap=*/true);
    for (const LeftOut waits : {LeftOut::kWaitsOfFirst, LeftOut::kWaitsOfOthers}) {
      cuda_emulator::LeaveOutWaits(waits, /*only=*/1000);
      EXPECT_EQ(TrainOnGpus(of, /*overlap=*/true), expected) << of.name;
      const int64_t num_pairs = cuda_emulator::NumWaitingPairs();
      EXPECT_GT(num_pairs, 1) << of.name;
      for (int64_t only = 0; only < num_pairs; ++only) {
        EXPECT_TRUE(cuda_emulator::ShowsInSomeRun(waits, only, [&] { return !HasOutcome(of, expected); }))
            << of.name << (waits == LeftOut::kWaitsOfFirst ? ", of the rank's stream" : ", of lanes' streams")
            << ", stream " << only << " of " << num_pairs;
        EXPECT_GT(cuda_emulator::NumLeftOut(), 0) << of.name;
      }
      cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
    }
  }
}

// Each by itself: some of them here, and all in cuda_waits_test. Of the waits of lanes' streams half are not seen by
// themselves, and why has not been worked out for each: those are left out by pairs of streams, as above.
TEST(CudaSchedulerTest, AWaitOfTheRanksStreamLeftOutIsSeen) {
  for (const CudaCase& of : CudaCases()) {
    EXPECT_THAT(UnseenWaitsOfRank(of, /*stride=*/13), testing::IsEmpty()) << of.name;
  }
}

// A task of the host reads what a lane brings when it is there, though the device's streams wait for each other alone.
TEST(CudaSchedulerTest, HostTasksComeAfterWhatTheyWaitFor) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  RunNcclRanks(2, [&](World& world) {
    const auto context = Bind(world, mesh);
    const Tensor elements = CloneTensor(RandomF64({4, kCudaDim}, 1), context->allocator());
    const DTensor terms =
        DTensor::FromLocal(context, elements, Layout::Parse("[-, -] P{dp}", mesh), {4, kCudaDim});
    const Tensor into = Tensor::Empty(context->allocator(), DType::kF64, {4, kCudaDim});
    std::vector<double> seen, seen_again;
    const auto read = [&](std::vector<double>* to) {  // the emulated device's memory is the host's
      const auto* const first = static_cast<const double*>(into.data());
      return [=] { to->assign(first, first + 4 * kCudaDim); };
    };
    TaskGraph graph(context);
    const TaskGraph::Task sum = graph.Communicate("sum", Lane::kGrad, [&] {
      return std::vector<EachMove>{{.source = terms, .to = Layout(2, 1), .into = into}};
    });
    const TaskGraph::Task first = graph.Host("read", read(&seen), {sum});
    graph.Host("read again", read(&seen_again), {first});
    graph.Run();
    const std::vector<double> values = RandomF64({4, kCudaDim}, 1).ToVector<double>();
    ASSERT_EQ(seen.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(seen[i], 2 * values[i]);
    EXPECT_EQ(seen_again, seen);
  });
}

}  // namespace
}  // namespace weft
