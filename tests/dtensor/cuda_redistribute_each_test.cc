// RedistributeEach on emulated GPUs over a fake NCCL: a stream runs only when somebody waits for it, so a wait
// that is missing shows as elements that are not there.

#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/functions.h"
#include "dtensor/host_memory.h"
#include "dtensor/redistribute_each.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using RankRunner = void (*)(int num_ranks, const std::function<void(World&)>& body);

void OverNccl(int num_ranks, const std::function<void(World&)>& body) { RunNcclRanks(num_ranks, body); }

// Through the CPU, by workers.
void OverLocal(int num_ranks, const std::function<void(World&)>& body) {
  cuda_emulator::SetMachine({.num_devices = 8});
  RunRanks(num_ranks, body,
           {.backend = Backend::kLocal,
            .device = DeviceType::kCuda,
            .device_options = {.fill_freed = true},
            .threads_per_rank = 1,
            .comm_timeout = std::chrono::minutes(1)});
}

void ExpectTheBitsOfTheMoveAlone(Lane lane, RankRunner run) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=2");
  std::vector<Layout> layouts;
  for (const char* text : {"[-, -]", "[a, -]", "[-, b]", "[a.b, -]", "[a, b]", "[-, -] P{a}", "[b, -] P{a}",
                           "[-, -] P{a,b}", "[-, a] P{b}"}) {
    layouts.push_back(Layout::Parse(text, mesh));
  }
  run(4, [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, mesh);
    const DTensor whole = DTensor::Distribute(context, RandomF64({7, 5}, 1), layouts[0]);
    std::vector<DTensor> sources, alone;
    sources.reserve(layouts.size());  // moves borrow them
    std::vector<EachMove> moves;
    for (const Layout& from : layouts) {
      sources.push_back(whole.Redistribute(from));
      for (const Layout& to : layouts) {
        moves.push_back({.source = sources.back(), .to = to});
        alone.push_back(sources.back().Redistribute(to));
      }
    }
    const std::vector<DTensor> together = RedistributeEach(moves, lane);
    for (size_t i = 0; i < moves.size(); ++i) {
      EXPECT_TRUE(SameBits(OnHost(together[i].ToLocal()), OnHost(alone[i].ToLocal())))
          << moves[i].source->layout.ToString(mesh) << " to " << moves[i].to.ToString(mesh) << " on rank "
          << world.rank();
    }
  });
}

class CudaLanes : public testing::TestWithParam<Lane> {};

TEST_P(CudaLanes, MovesHaveTheBitsOfTheMoveAlone) { ExpectTheBitsOfTheMoveAlone(GetParam(), OverNccl); }

TEST_P(CudaLanes, AlsoThroughTheCpu) { ExpectTheBitsOfTheMoveAlone(GetParam(), OverLocal); }

INSTANTIATE_TEST_SUITE_P(Lanes, CudaLanes, testing::ValuesIn(kLanes),
                         [](const auto& info) { return std::string(LaneName(info.param)); });

// What rank 0 computes while the other ranks of `mesh` have not issued their part of `move`, and what it then reads. Were
// its stream to wait for a lane before that, this would hang.
template <class Move>
void ExpectNoWaitAtIssue(const char* mesh, const Move& move, RankRunner run = OverNccl) {
  const DeviceMesh ranks = DeviceMesh::Parse(mesh);
  std::latch has_computed(ranks.num_ranks());
  run(static_cast<int>(ranks.num_ranks()), [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, ranks);
    const DTensor x = DTensor::Distribute(context, RandomF64({6, 4}, 1), Layout(2, ranks.num_axes()));
    const Tensor expected = CloneTensor(OnHost(move(x).ToLocal()), MakeCpuAllocator());  // makes the groups
    if (world.rank() > 0) has_computed.arrive_and_wait();
    const DTensor moved = move(x);
    EXPECT_TRUE(moved.impl()->is_pending());
    if (world.rank() == 0) {
      EXPECT_TRUE(AllClose(OnHost(Add(x, x).ToLocal()), OnHost((2.0 * x).ToLocal()), 1e-15));
      has_computed.arrive_and_wait();
    }
    EXPECT_TRUE(SameBits(OnHost(moved.ToLocal()), expected));
    EXPECT_FALSE(moved.impl()->is_pending());
  });
}

DTensor Moved(const DTensor& x, const char* to, Lane lane) {
  return RedistributeEach({{.source = x, .to = Layout::Parse(to, x.context()->mesh())}}, lane)[0];
}

TEST(CudaRedistributeEachTest, TheRanksStreamDoesNotWaitAtIssue) {
  ExpectNoWaitAtIssue("a=2", [](const DTensor& x) {
    return Moved(x.Redistribute(Layout::Parse("[-, a]", x.context()->mesh())), "[-, -]", Lane::kParam);
  });
}

// Nor the host, where a worker carries the data; the flight recorder knows when it does.
TEST(CudaRedistributeEachTest, TheHostDoesNotWaitAtIssueForTheCpusThreads) {
  ExpectNoWaitAtIssue(
      "a=2",
      [](const DTensor& x) {
        return Moved(x.Redistribute(Layout::Parse("[-, a]", x.context()->mesh())), "[-, -]", Lane::kParam);
      },
      OverLocal);
}

// What a worker brings goes on to another lane, to the host, and into what is computed of it.
TEST(CudaRedistributeEachTest, WhatTheCpusThreadsBringGoesOn) {
  OverLocal(4, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("a=2,b=2"));
    const DeviceMesh& mesh = context->mesh();
    const Tensor elements = CloneTensor(RandomF64({6, 4}, 1), context->allocator());
    for (const Lane second : {Lane::kReplica, Lane::kGrad}) {
      const DTensor terms =
          DTensor::FromLocal(context, elements, Layout::Parse("[-, -] P{a,b}", mesh), {6, 4});
      const DTensor scattered = Moved(2.0 * terms, "[-, a] P{b}", Lane::kGrad);
      const DTensor there = ToHost(scattered);
      const DTensor summed = Moved(scattered, "[-, a]", second);
      const DTensor whole = Moved(summed, "[-, -]", Lane::kParam);
      const std::vector<double> values = RandomF64({6, 4}, 1).ToVector<double>();
      const std::vector<double> mine = (whole + whole).ToLocal().ToVector<double>();
      const std::vector<double> piece = there.ToLocal().ToVector<double>();
      for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(mine[i], 16 * values[i]);
      const size_t first = world.rank() < 2 ? 0 : 2;  // of its columns
      for (size_t i = 0; i < piece.size(); ++i) {
        EXPECT_EQ(piece[i], 4 * values[i / 2 * 4 + first + i % 2]);
      }
    }
  });
}

// A move of several collectives, with packing in between.
TEST(CudaRedistributeEachTest, NorForTheLastCollectiveButOne) {
  ExpectNoWaitAtIssue("a=2,b=2", [](const DTensor& x) {
    const DTensor terms = DTensor::FromLocal(x.context(), x.ToLocal(),
                                             Layout::Parse("[-, b] P{a}", x.context()->mesh()), {6, 8});
    return Moved(terms, "[b, a]", Lane::kGrad);
  });
}

// What one lane brings is moved on by another, and by the same.
TEST(CudaRedistributeEachTest, NorForAPendingSource) {
  for (const Lane second : {Lane::kReplica, Lane::kGrad}) {
    ExpectNoWaitAtIssue("a=2,b=2", [second](const DTensor& x) {
      const DTensor terms = DTensor::FromLocal(x.context(), x.ToLocal(),
                                               Layout::Parse("[-, -] P{a,b}", x.context()->mesh()), {6, 4});
      const DTensor scattered = Moved(terms, "[a, -] P{b}", Lane::kGrad);
      return Moved(scattered, "[a, -]", second);
    });
  }
}

// The rank computes, one lane scatters sums, another gathers them, the rank computes on: in memory that it has just given
// back, which turns to NaN in its order. Rank 0's elements.
// The mistake is planted when the groups are there: their members wait for their streams when they meet.
std::vector<double> RelayOverLanes(cuda_emulator::LeftOut waits = cuda_emulator::LeftOut::kNothing,
                                   int64_t only = -1) {
  std::vector<double> values;
  cuda_emulator::LeaveOutWaits(cuda_emulator::LeftOut::kNothing);
  std::barrier has_groups(2, [&]() noexcept { cuda_emulator::LeaveOutWaits(waits, only); });
  const auto relay = [&](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("a=2"));
    const DeviceMesh& mesh = context->mesh();
    const Tensor elements = CloneTensor(RandomF64({6, 4}, 1), context->allocator());
    for (const Lane lane : {Lane::kGrad, Lane::kParam}) context->Group({0}, lane);
    has_groups.arrive_and_wait();
    const auto give_back = [&] { CloneTensor(elements, context->allocator()); };
    const DTensor terms = DTensor::FromLocal(context, elements, Layout::Parse("[-, -] P{a}", mesh), {6, 4});
    const DTensor computed = 2.0 * terms;
    give_back();
    const DTensor scattered = Moved(computed, "[-, a]", Lane::kGrad);
    give_back();
    const DTensor gathered = Moved(scattered, "[-, -]", Lane::kParam);
    const Tensor mine = CloneTensor((gathered + gathered).ToLocal(), MakeCpuAllocator());
    if (world.rank() == 0) values = mine.ToVector<double>();
  };
  RunNcclRanks(2, relay, std::make_shared<FakeNccl>(), std::chrono::minutes(2),
               {.tell = [](const std::string&) {}}, {.fill_freed = true});
  return values;
}

TEST(CudaRedistributeEachTest, EachWaitLeftOutIsSeen) {
  using cuda_emulator::LeftOut;
  const std::vector<double> expected = RelayOverLanes();
  const std::vector<double> terms = RandomF64({6, 4}, 1).ToVector<double>();
  ASSERT_EQ(expected.size(), terms.size());
  for (size_t i = 0; i < terms.size(); ++i) ASSERT_EQ(expected[i], 8 * terms[i]);
  for (const LeftOut waits : {LeftOut::kWaitsOfFirst, LeftOut::kWaitsOfOthers}) {
    EXPECT_EQ(RelayOverLanes(waits, /*only=*/1000), expected);
    const int64_t num_pairs = cuda_emulator::NumWaitingPairs();
    // The rank for the second lane; each lane for the rank, its group and it for each other, the second for the first.
    ASSERT_EQ(num_pairs, waits == LeftOut::kWaitsOfFirst ? 1 : 7);
    for (int64_t only = 0; only < num_pairs; ++only) {
      const auto differs = [&] {
        std::vector<double> outcome;
        const std::string error = MessageOf([&] { outcome = RelayOverLanes(waits, only); });
        return error != "no error" || outcome != expected;
      };
      EXPECT_TRUE(cuda_emulator::ShowsInSomeRun(waits, only, differs))
          << static_cast<int>(waits) << ", " << only;
      EXPECT_GT(cuda_emulator::NumLeftOut(), 0);
    }
    cuda_emulator::LeaveOutWaits(LeftOut::kNothing);
  }
}

TEST(CudaRedistributeEachTest, PendingResultsMayBeDropped) {
  RunNcclRanks(2, [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh::Parse("a=2"));
    const DeviceMesh& mesh = context->mesh();
    const DTensor source = DTensor::Distribute(context, RandomF64({8, 8}, 1), Layout::Parse("[-, a]", mesh));
    std::vector<DTensor> results;
    for (int i = 0; i < 12; ++i) {
      DTensor moved =
          RedistributeEach({{.source = source, .to = Layout::Parse("[-, -]", mesh)}}, Lane::kGrad)[0];
      if (i % 3 == 0) continue;  // nobody reads it
      results.push_back(i % 3 == 1 ? Add(moved, moved) : moved.Detach());
    }
    for (size_t i = 0; i < results.size(); ++i) {
      const Tensor whole = RandomF64({8, 8}, 1);
      const Tensor mine = OnHost(results[i].ToLocal());
      for (int64_t j = 0; j < 64; ++j) {
        ASSERT_EQ(mine.data<double>()[j], whole.data<double>()[j] * (i % 2 == 0 ? 2 : 1));
      }
    }
  });
}

}  // namespace
}  // namespace weft
