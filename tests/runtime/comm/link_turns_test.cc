#include "runtime/comm/link_turns.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/comm/queued_communicator.h"
#include "runtime/comm/worker_pool.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

void AwaitHeld(const LinkTurns& turns, int64_t num_held) {
  while (turns.num_held() < num_held) std::this_thread::yield();
}

// So much more is moved, once it may be.
void Move(LinkTurns::Turn& turn, int64_t num_bytes) {
  turn.Hold();
  turn.Fill(num_bytes);
}

TEST(LinkTurnsTest, TheLessUrgentWaitsBetweenTwoChunks) {
  LinkTurns turns(/*chunk_bytes=*/128, hours(1));
  LinkTurns::Turn low(turns, /*priority=*/0, kMemoryLink, hours(4));
  LinkTurns::Turn high(turns, /*priority=*/1, kMemoryLink, hours(4));
  low.Begin();
  Move(low, 128);
  Move(low, 127);  // the other does not move yet
  high.Begin();
  Move(low, 1);
  std::atomic<bool> goes_on = false;
  std::thread thread([&] {
    Move(low, 128);
    goes_on = true;
  });
  AwaitHeld(turns, 1);
  EXPECT_FALSE(goes_on);
  high.End();
  thread.join();
  Move(low, 128);
  EXPECT_EQ(turns.num_held(), 1);
}

TEST(LinkTurnsTest, WhatDoesNotMoveIsNotHeldAndItsChunkStaysFull) {
  LinkTurns turns(/*chunk_bytes=*/64, milliseconds(1));
  LinkTurns::Turn high(turns, /*priority=*/1, kEveryLink, hours(4));
  high.Begin();
  LinkTurns::Turn low(turns, /*priority=*/0, kEveryLink, hours(4));
  for (int i = 0; i < 3; ++i) Move(low, 64);  // not all have entered it
  EXPECT_EQ(turns.num_held(), 0);
  low.Begin();
  Move(low, 1);
  EXPECT_EQ(turns.num_held(), 1);
}

TEST(LinkTurnsTest, NothingElseWaits) {
  LinkTurns turns(/*chunk_bytes=*/64, hours(1));
  LinkTurns::Turn moving(turns, /*priority=*/1, kMemoryLink, hours(4));
  moving.Begin();
  const auto num_held = [&](LinkTurns::Turn&& turn) {
    turn.Begin();
    for (int i = 0; i < 2; ++i) Move(turn, 64);
    return turns.num_held();
  };
  EXPECT_EQ(num_held({turns, /*priority=*/1, kEveryLink, hours(4)}), 0);    // as urgent
  EXPECT_EQ(num_held({turns, /*priority=*/2, kEveryLink, hours(4)}), 0);    // more urgent
  EXPECT_EQ(num_held({turns, /*priority=*/0, kNetworkLink, hours(4)}), 0);  // on another link
  for (int i = 0; i < 2; ++i) Move(moving, 64);                             // itself
  EXPECT_EQ(turns.num_held(), 0);
}

TEST(LinkTurnsTest, AWaitHasAnEnd) {
  LinkTurns turns(/*chunk_bytes=*/64, milliseconds(1));
  LinkTurns::Turn stuck(turns, /*priority=*/1, kEveryLink, hours(4));
  stuck.Begin();
  LinkTurns::Turn low(turns, /*priority=*/0, kEveryLink, hours(4));
  low.Begin();
  for (int i = 0; i <= 3; ++i) {
    Move(low, 64);
    EXPECT_EQ(turns.num_held(), i);
  }
  // In all no longer than a quarter of the operation's timeout.
  LinkTurns patient(/*chunk_bytes=*/64, hours(1));
  LinkTurns::Turn also_stuck(patient, /*priority=*/1, kEveryLink, hours(4));
  also_stuck.Begin();
  LinkTurns::Turn hurried(patient, /*priority=*/0, kEveryLink, milliseconds(40));
  hurried.Begin();
  for (int i = 0; i < 4; ++i) Move(hurried, 64);
  EXPECT_EQ(patient.num_held(), 1);
}

// In which order chunks of several operations have gone, with what a test waits for.
class Record {
 public:
  void Add(const std::string& chunk) {
    const std::lock_guard<std::mutex> lock(mutex_);
    chunks_.push_back(chunk);
  }
  std::vector<std::string> chunks() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return chunks_;
  }
  void Await(const std::function<bool(const std::vector<std::string>&)>& ready) const {
    while (!ready(chunks())) std::this_thread::yield();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> chunks_;
};

// A transport that moves nothing: three chunks of 1 MiB, which it records.
class FakeGroup final : public QueuedCommunicator {
 public:
  FakeGroup(const std::string& name, WorkerPool* workers, Record* record,
            std::function<void(int chunk)> before)
      : QueuedCommunicator(name, /*rank=*/0, {0, 1}, /*ledger=*/nullptr, workers),
        record_(record),
        before_(std::move(before)) {}

  void Fail(absl::StatusCode, const std::string&) override {}

 protected:
  void Run(const CollectiveCall& call) override {
    NoteAllEntered(call);
    for (int chunk = 0; chunk < 3; ++chunk) {
      if (call.turn != nullptr) call.turn->Hold();
      before_(chunk);
      record_->Add(absl::StrCat(name(), chunk));
      if (call.turn != nullptr) call.turn->Fill(1 << 20);
    }
  }
  void Run(const SendRecvCall&) override {}
  void ThrowIfFailed() const override {}
  [[noreturn]] void Leave() override { Throw(absl::StatusCode::kAborted, "left"); }

 private:
  Record* const record_;
  const std::function<void(int chunk)> before_;
};

// The less urgent operation is under way when the other begins, which moves its first chunk once the first has come to the end
// of its own. Returns the order of all.
std::vector<std::string> OrderOfChunks(bool takes_turns) {
  const auto turns = std::make_shared<LinkTurns>(LinkTurns::kChunkBytes, hours(1));
  turns->Set(takes_turns);
  WorkerPool workers;
  Record record;
  std::atomic<bool> urgent_runs = false;
  const auto grad = std::make_shared<FakeGroup>("grad", &workers, &record, [&](int chunk) {
    while (chunk == 0 && !urgent_runs) std::this_thread::yield();
  });
  const auto param = std::make_shared<FakeGroup>("param", &workers, &record, [&](int chunk) {
    urgent_runs = true;
    if (chunk > 0) return;
    record.Await([&](const auto& chunks) { return chunks.size() >= 2 || turns->num_held() == 1; });
  });
  TakeTurns(*grad, turns, /*priority=*/0);
  TakeTurns(*param, turns, /*priority=*/1);
  const Tensor tensor = Tensor::Empty(MakeCpuAllocator(), DType::kF32, {1});
  const Work less = grad->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
  const Work more = param->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = true});
  more.Wait();
  less.Wait();
  workers.Finish();
  return record.chunks();
}

TEST(LinkTurnsTest, ChunksOfTheMoreUrgentGoFirst) {
  EXPECT_EQ(OrderOfChunks(/*takes_turns=*/true),
            (std::vector<std::string>{"grad0", "param0", "param1", "param2", "grad1", "grad2"}));
  EXPECT_EQ(OrderOfChunks(/*takes_turns=*/false)[1], "grad1");
}

// Rank 0's part of an all-reduce is half of it. While something more urgent moves it is held between two chunks, be they of one
// operation or of two parts of a list, and not behind the last.
TEST(LinkTurnsTest, OperationsAreHeldBetweenTheirChunksAlone) {
  constexpr int64_t kCount = 2048;  // one chunk's
  RunRanks(2, [](World& world) {
    const auto turns = std::make_shared<LinkTurns>(/*chunk_bytes=*/kCount / 2 * 4, milliseconds(1));
    turns->Set(true);
    const auto group = world.NewGroup("dp", {0, 1});
    std::optional<LinkTurns::Turn> urgent;
    if (world.rank() == 0) {
      TakeTurns(*group, turns, /*priority=*/0);
      urgent.emplace(*turns, /*priority=*/1, kMemoryLink, hours(1));
      urgent->Begin();
    }
    const auto filled = [&](int64_t count) {
      const Tensor tensor = Tensor::Empty(world.allocator(), DType::kF32, {count});
      std::fill_n(tensor.data<float>(), count, 1.0f);
      return tensor;
    };
    const auto num_held = [&](const std::function<void()>& run) {
      const int64_t before = turns->num_held();
      run();
      return turns->num_held() - before;
    };
    const int64_t once = world.rank() == 0 ? 1 : 0;
    const Tensor one = filled(kCount), other = filled(kCount), three = filled(3 * kCount);
    EXPECT_EQ(num_held([&] { group->AllReduce(one, one, ReduceOp::kSum); }), 0);
    EXPECT_EQ(num_held([&] { group->AllReduce(three, three, ReduceOp::kSum); }), 2 * once);
    EXPECT_EQ(num_held([&] {
                group->AllReduceEach({{one, one, {}}, {other, other, {}}}, ReduceOp::kSum);
              }),
              once);
    EXPECT_EQ(three.data<float>()[3 * kCount - 1], 2);
  });
}

// One rank's results over four lanes of three priorities, all-reduces and gathers of many chunks beside calls that it waits
// for: issued in an order of the rank's own, or the less urgent first, and then it waits for some before it issues the next.
// Adds to `num_held`.
std::vector<float> RunLanes(World& world, int seed, bool takes_turns, std::atomic<int64_t>& num_held) {
  constexpr int kLanes = 4;
  const auto turns = std::make_shared<LinkTurns>(/*chunk_bytes=*/1024, hours(1));
  turns->Set(takes_turns);
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::shared_ptr<Communicator>> groups;
  for (int lane = 0; lane <= kLanes; ++lane) {  // the last is for calls that are waited for
    groups.push_back(world.NewGroup(absl::StrCat("lane ", lane), ranks));
    groups[lane]->set_timeout(hours(8));
    TakeTurns(*groups[lane], turns, (lane + 1) / 2);
  }
  std::mt19937 shared(seed);  // sizes, the same on all ranks
  std::mt19937 own(1000 * seed + world.rank());
  std::vector<float> results;
  for (int round = 0; round < 4; ++round) {
    const bool waits_between = round % 2 == 1;
    std::vector<Tensor> tensors;
    for (int lane = 0; lane <= kLanes; ++lane) {
      tensors.push_back(
          Tensor::Empty(world.allocator(), DType::kF32, {1 + static_cast<int64_t>(shared() % 20'000) * 3}));
      for (int64_t i = 0; i < tensors[lane].num_elements(); ++i) {
        tensors[lane].data<float>()[i] =
            1.0f / static_cast<float>(1 + (i * (lane + 7) + world.rank()) % 1009);
      }
    }
    std::vector<int> order(kLanes + 1);
    std::iota(order.begin(), order.end(), 0);
    if (!waits_between) std::shuffle(order.begin(), order.end(), own);
    std::vector<Work> works;
    for (const int lane : order) {
      const Tensor& tensor = tensors[lane];
      const int64_t piece = tensor.num_elements() / world.size();
      const bool async = lane < kLanes;
      works.push_back(groups[lane]->AllReduce(tensor, tensor, ReduceOp::kSum, {.async = async}));
      const std::vector<int64_t> counts(world.size(), piece);
      works.push_back(groups[lane]->AllGather(tensor.Slice(0, world.rank() * piece, piece),
                                              tensor.Slice(0, 0, world.size() * piece), counts,
                                              {.async = async}));
      if (waits_between && own() % 2 == 0) works[own() % works.size()].Wait();
    }
    std::shuffle(works.begin(), works.end(), own);
    for (const Work& work : works) work.Wait();
    for (const Tensor& tensor : tensors) {
      results.insert(results.end(), tensor.data<float>(), tensor.data<float>() + tensor.num_elements());
    }
  }
  num_held += turns->num_held();
  return results;
}

// A turn has no end of its own here: ranks that waited for each other because of one would do so for ever.
TEST(LinkTurnsTest, RanksInOrdersOfTheirOwnEndWithTheSameBits) {
  std::atomic<int64_t> num_held = 0;
  for (int seed = 0; seed < 20; ++seed) {
    RunRanks(3, [&](World& world) {
      const std::vector<float> expected = RunLanes(world, seed, /*takes_turns=*/false, num_held);
      EXPECT_EQ(RunLanes(world, seed, /*takes_turns=*/true, num_held), expected) << "seed " << seed;
    });
  }
  EXPECT_GT(num_held, 0);
}

}  // namespace
}  // namespace weft
