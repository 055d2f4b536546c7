// Lanes: groups of the same ranks, each with a worker that its user has given. On a device streams carry them.

#include <algorithm>
#include <chrono>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/comm/link_turns.h"
#include "runtime/comm/queued_communicator.h"
#include "runtime/comm/worker.h"
#include "tests/runtime/comm/conformance.h"

namespace weft {
namespace {

constexpr int kNumLanes = 4;

Tensor Filled(World& world, int64_t count, double value) {
  return MakeTensor<double>(world, count, [&](double* values) { std::fill_n(values, count, value); });
}

void ExpectFilled(const Tensor& tensor, double value) {
  const Tensor host = OnHost(tensor);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    Expect(host.data<double>()[i] == value, "element ", i, " is ", host.data<double>()[i], ", expected ",
           value);
  }
}

struct CommLane {
  std::shared_ptr<Communicator> group;
  std::shared_ptr<Worker> worker;  // null on a device

  CommOptions Options() const { return {.async = true, .worker = worker.get()}; }
};

std::vector<CommLane> MakeLanes(World& world) {
  std::vector<CommLane> lanes;
  for (int i = 0; i < kNumLanes; ++i) {
    lanes.push_back({world.NewGroup(absl::StrCat("lane ", i), AllRanks(world)),
                     OnCpu(world) ? world.StartWorker() : nullptr});
    lanes.back().group->SetInBackground();
  }
  return lanes;
}

// What moves on one lane in one round, and what comes of it.
struct LaneRound {
  std::vector<Work> works;
  Tensor sum;
  std::vector<Tensor> gathered;
  Tensor scattered;
  Tensor received;
};

LaneRound Issue(World& world, const CommLane& lane, double value, int64_t count) {
  const int size = world.size();
  const std::vector<int64_t> counts(size, count);
  LaneRound round;
  round.sum = Filled(world, count, value + world.rank());
  round.works.push_back(lane.group->AllReduce(round.sum, round.sum, ReduceOp::kSum, lane.Options()));
  // A list, whose later part has what the sum has made.
  round.gathered = {Filled(world, size * count, -1), Filled(world, size * count, -1)};
  const std::vector<CollectivePart> parts = {
      {Filled(world, count, value - world.rank()), round.gathered[0], {counts.begin(), counts.end()}},
      {round.sum, round.gathered[1], {counts.begin(), counts.end()}}};
  round.works.push_back(lane.group->AllGatherEach(parts, lane.Options()));
  round.scattered = Filled(world, count, -1);
  round.works.push_back(
      lane.group->ReduceScatter(round.gathered[1], round.scattered, counts, ReduceOp::kSum, lane.Options()));
  round.received = Filled(world, count, -1);
  round.works.push_back(lane.group->SendRecv({{(world.rank() + 1) % size, round.sum}},
                                             {{(world.rank() + size - 1) % size, round.received}},
                                             lane.Options()));
  return round;
}

void Check(World& world, const LaneRound& round, double value, int64_t count) {
  for (const Work& work : round.works) work.Wait();
  const int size = world.size();
  const double sum = size * value + size * (size - 1) / 2.0;
  ExpectFilled(round.sum, sum);
  for (int rank = 0; rank < size; ++rank) {
    ExpectFilled(round.gathered[0].Slice(0, rank * count, count), value - rank);
    ExpectFilled(round.gathered[1].Slice(0, rank * count, count), sum);
  }
  ExpectFilled(round.scattered, size * sum);
  ExpectFilled(round.received, sum);
}

// Four lanes at once beside blocking calls on a group without one; each rank waits in an order of its own.
TEST_P(CommConformance, LanesOfTheSameRanksRunBesideEachOther) {
  Run(3, [repeats = Repeats(20)](World& world) {
    const std::vector<CommLane> lanes = MakeLanes(world);
    const auto blocking = world.NewGroup("inline", AllRanks(world));
    for (int i = 0; i < std::max(repeats, 2); ++i) {
      const int64_t count = i % 2 == 0 ? 5 : 40'000;
      std::vector<LaneRound> rounds;
      for (int lane = 0; lane < kNumLanes; ++lane) {
        rounds.push_back(Issue(world, lanes[lane], 100 * i + lane, count));
        const Tensor tensor = Filled(world, 7, world.rank());
        blocking->AllReduce(tensor, tensor, ReduceOp::kSum);
        ExpectFilled(tensor, 3);
      }
      for (int j = 0; j < kNumLanes; ++j) {
        const int lane = (j + world.rank()) % kNumLanes;
        Check(world, rounds[lane], 100 * i + lane, count);
      }
    }
  });
}

// With one queue for all lanes each rank would wait for another's. First in one order, in which NCCL makes its groups.
TEST_P(CommConformance, RanksIssueLanesInOrdersOfTheirOwn) {
  Run(kNumLanes, [](World& world) {
    const std::vector<CommLane> lanes = MakeLanes(world);
    std::vector<LaneRound> rounds(kNumLanes);
    for (const CommLane& lane : lanes) Check(world, Issue(world, lane, /*value=*/1, /*count=*/2), 1, 2);
    for (int j = 0; j < kNumLanes; ++j) {
      const int lane = (j + world.rank()) % kNumLanes;
      rounds[lane] = Issue(world, lanes[lane], lane, 3000);
    }
    for (int lane = 0; lane < kNumLanes; ++lane) Check(world, rounds[lane], lane, 3000);
  });
}

// What a lane's user submits runs between its collectives: each doubles what the one before has made.
TEST_P(CommConformance, TasksOfALaneRunBetweenItsCollectives) {
  Run(2, [](World& world) {
    if (!OnCpu(world)) return;  // streams have no tasks
    for (const CommLane& lane : MakeLanes(world)) {
      const Tensor tensor = Filled(world, 1000, 1);
      double expected = 1;
      for (int i = 0; i < 10; ++i) {
        lane.group->AllReduce(tensor, tensor, ReduceOp::kSum, lane.Options());
        lane.worker->Submit([tensor] {
          for (int64_t j = 0; j < tensor.num_elements(); ++j) tensor.data<double>()[j] += 1;
        });
        expected = 2 * expected + 1;
      }
      // A blocking call comes behind what the worker has.
      lane.group->AllReduce(tensor, tensor, ReduceOp::kSum);
      ExpectFilled(tensor, 2 * expected);
    }
  });
}

// One rank holds a lane back until the others have ended.
TEST_P(CommConformance, ALaneThatIsHeldHoldsNoOther) {
  Run(2, [](World& world) {
    if (!OnCpu(world)) return;  // streams have no tasks
    const std::vector<CommLane> lanes = MakeLanes(world);
    std::latch open(world.rank() == 1 ? 1 : 0);
    lanes[0].worker->Submit([&open] { open.wait(); });
    std::vector<LaneRound> rounds;
    for (int lane = 0; lane < kNumLanes; ++lane) rounds.push_back(Issue(world, lanes[lane], lane, 3000));
    for (int lane = 1; lane < kNumLanes; ++lane) Check(world, rounds[lane], lane, 3000);
    Expect(world.rank() == 0 || !rounds[0].works[0].Test(), "a lane that is held has ended");
    if (world.rank() == 1) open.count_down();
    Check(world, rounds[0], 0, 3000);
  });
}

TEST_P(CommConformance, ALaneThatFailsEndsNoOther) {
  Run(2, [](World& world) {
    const std::vector<CommLane> lanes = MakeLanes(world);
    const Tensor bad = Filled(world, 10 + world.rank(), 0);
    bool ran = false;
    const Work fails =
        lanes[1].group->AllReduce(bad, bad, ReduceOp::kSum, lanes[1].Options()).Then([&] { ran = true; });
    const LaneRound good = Issue(world, lanes[2], 1, 3000);
    ExpectContains(ErrorOf(absl::StatusCode::kInvalidArgument, [&] { AwaitOnHost(world, fails); }),
                   {"lane 1", "count 10", "count 11"});
    Expect(!ran, "what comes behind an operation has run though that has failed");
    Check(world, good, 1, 3000);
    Check(world, Issue(world, lanes[3], 2, 5), 2, 5);
  });
}

TEST_P(CommConformance, AContinuationRunsOnTheRanksThread) {
  Run(2, [](World& world) {
    const std::vector<CommLane> lanes = MakeLanes(world);
    const std::thread::id own = std::this_thread::get_id();
    const Tensor sum = Filled(world, 3000, 1);
    const Work work = lanes[0].group->AllReduce(sum, sum, ReduceOp::kSum, lanes[0].Options());
    int num_calls = 0;
    const Work then = work.Then([&] {
      Expect(std::this_thread::get_id() == own, "a continuation runs on another thread");
      ++num_calls;
    });
    AwaitOnHost(world, work);
    Expect(num_calls == 0, "a continuation has run before its poll");
    Expect(then.Test() && num_calls == 1, "a continuation has run ", num_calls, " times, expected once");
    then.Wait();
    Expect(num_calls == 1, "a continuation has run ", num_calls, " times, expected once");
    ExpectFilled(sum, 2);
    const Work throws = then.Then([] { Throw(absl::StatusCode::kDataLoss, "cannot unpack"); });
    for (int i = 0; i < 2; ++i) {
      ExpectContains(ErrorOf(absl::StatusCode::kDataLoss, [&] { throws.Wait(); }), {"cannot unpack"});
    }
  });
}

// Until it ends, something of higher priority moves on rank 0, whose part in an operation stops at the end of a chunk. Its peer
// has no turns and waits.
TEST_P(CommConformance, AnOperationWaitsBetweenItsChunksForAMoreUrgentOne) {
  Run(2, [](World& world) {
    if (!OnCpu(world)) return;  // a device's library cuts its operations itself
    const auto turns = std::make_shared<LinkTurns>(LinkTurns::kChunkBytes, std::chrono::hours(1));
    turns->Set(true);
    const auto group = world.NewGroup("less urgent", AllRanks(world));
    std::optional<LinkTurns::Turn> urgent;
    if (world.rank() == 0) {
      TakeTurns(*group, turns, /*priority=*/0);
      urgent.emplace(*turns, /*priority=*/1, kEveryLink, std::chrono::hours(1));
      urgent->Begin();
    }
    const int64_t count = 2 << 20;  // several blocks of every backend
    const Tensor sum = Filled(world, count, world.rank());
    const Work work = group->AllReduce(sum, sum, ReduceOp::kSum, {.async = true});
    if (world.rank() == 0) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (turns->num_held() == 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
      Expect(turns->num_held() == 1 && !work.Test(), "nothing waits for what is more urgent");
      urgent->End();
    }
    work.Wait();
    Expect(turns->num_held() == (world.rank() == 0 ? 1 : 0), "held ", turns->num_held(), " times");
    ExpectFilled(sum, 1);
  });
}

// Something of higher priority moves on rank 0, the root, whose part is one chunk: by `gloo` it is reduced at once. What has moved
// all of its bytes ends.
TEST_P(CommConformance, AnOperationIsNotHeldBehindItsLastChunk) {
  Run(2, [](World& world) {
    if (!OnCpu(world)) return;  // a device's library cuts its operations itself
    const auto turns = std::make_shared<LinkTurns>(/*chunk_bytes=*/8192, std::chrono::milliseconds(1));
    turns->Set(true);
    const auto group = world.NewGroup("less urgent", AllRanks(world));
    std::optional<LinkTurns::Turn> urgent;
    if (world.rank() == 0) {
      TakeTurns(*group, turns, /*priority=*/0);
      urgent.emplace(*turns, /*priority=*/1, kEveryLink, std::chrono::hours(1));
      urgent->Begin();
    }
    const Tensor term = Filled(world, 2048, 1), sum = Filled(world, 2048, 0);
    group->Reduce(term, sum, ReduceOp::kSum, /*root=*/0);
    Expect(turns->num_held() == 0, "held ", turns->num_held(), " times");
    if (world.rank() == 0) ExpectFilled(sum, 2);
  });
}

// Waits for turns have no end of their own here. Ranks issue in orders of their own, or, the less urgent first, one of them
// waits for each before it issues the next: would ranks wait for each other because of a turn, they would for ever.
TEST_P(CommConformance, LanesThatTakeTurnsAllEnd) {
  Run(3, [repeats = Repeats(20)](World& world) {
    const auto turns = std::make_shared<LinkTurns>(/*chunk_bytes=*/4096, std::chrono::hours(1));
    const std::vector<CommLane> lanes = MakeLanes(world);
    const auto blocking = world.NewGroup("inline", AllRanks(world));
    for (int lane = 0; lane < kNumLanes; ++lane) TakeTurns(*lanes[lane].group, turns, /*priority=*/lane / 2);
    TakeTurns(*blocking, turns, /*priority=*/2);
    for (const CommLane& lane : lanes) lane.group->set_timeout(std::chrono::hours(8));
    blocking->set_timeout(std::chrono::hours(8));
    for (const CommLane& lane : lanes) Check(world, Issue(world, lane, /*value=*/1, /*count=*/2), 1, 2);
    turns->Set(true);
    for (int i = 0; i < std::max(repeats, 3); ++i) {
      const int64_t count = i % 2 == 0 ? 20'000 : 3000;
      std::vector<LaneRound> rounds(kNumLanes);
      for (int j = 0; j < kNumLanes; ++j) {
        const bool waits_between = i % 2 == 0;
        const int lane = waits_between ? j : (j + world.rank() + i) % kNumLanes;
        rounds[lane] = Issue(world, lanes[lane], 100 * i + lane, count);
        if (waits_between && world.rank() == i / 2 % 3) rounds[lane].works.back().Wait();
        if (waits_between ? j + 1 == kNumLanes : j % 2 == world.rank() % 2) {
          const Tensor tensor = Filled(world, count, world.rank());
          blocking->AllReduce(tensor, tensor, ReduceOp::kSum);
          ExpectFilled(tensor, 3);
        }
      }
      for (int j = 0; j < kNumLanes; ++j) {
        const int lane = (j + 2 * world.rank()) % kNumLanes;
        Check(world, rounds[lane], 100 * i + lane, count);
      }
    }
  });
}

}  // namespace
}  // namespace weft
