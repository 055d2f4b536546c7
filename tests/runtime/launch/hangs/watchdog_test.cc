#include "runtime/launch/hangs/watchdog.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/store/forwarding_store.h"
#include "runtime/store/hash_store.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

// What a watchdog told, a line each.
class Told {
 public:
  WatchdogOptions Options(milliseconds tell_after = milliseconds(150)) {
    return {.interval = milliseconds(20),
            .late_after = milliseconds(60),
            .tell_after = tell_after,
            .tell = [this](const std::string& line) {
              const std::lock_guard<std::mutex> lock(mutex_);
              lines_.push_back(line);
            }};
  }
  std::vector<std::string> lines() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

void BarrierOf(World& world, const std::string& axis, const std::vector<int>& ranks) {
  world.NewGroup(axis, ranks)->Barrier();
}

constexpr char kCircle[] =
    "deadlock: rank 2 is at barrier() #1 on axis tp while ranks 0, 1 wait in barrier() #1 on axis dp";

// Ranks 0 and 1 begin with dp, rank 2 with tp: none can go on. The timeout is ten minutes.
TEST(WatchdogTest, ADeadlockEndsOnEveryRankWithOneVerdict) {
  Told told;
  const auto begin = std::chrono::steady_clock::now();
  const std::string message = MessageOf([&] {
    RunRanks(3,
             [](World& world) {
               if (world.rank() != 2) BarrierOf(world, "dp", {0, 1, 2});
               BarrierOf(world, "tp", {1, 2});
             },
             {.watchdog = told.Options(/*tell_after=*/milliseconds(60'000))});
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(told.lines().size(), 1u);
  // Whichever rank finds it first tells its side.
  const std::string other =
      "deadlock: rank 1 is at barrier() #1 on axis dp while rank 2 waits in barrier() #1 on axis tp";
  EXPECT_TRUE(message.find(kCircle) != std::string::npos || message.find(other) != std::string::npos)
      << message;
  EXPECT_EQ(told.lines()[0].find("weft: deadlock: "), 0u) << told.lines()[0];
}

// Rank 0's call on dp was refused, so rank 1 waits there for it in vain.
TEST(WatchdogTest, ARefusedCallHasNotBeenEntered) {
  Told told;
  const std::string message = MessageOf([&] {
    RunRanks(2,
             [](World& world) {
               const auto dp = world.NewGroup("dp", {0, 1});
               const auto tp = world.NewGroup("tp", {0, 1});
               if (world.rank() == 1) return dp->Barrier();
               const Tensor meta = Tensor::Empty(MakeMetaAllocator(), DType::kF32, {4});
               EXPECT_NE(
                   InvalidArgumentMessage([&] { dp->AllReduce(meta, meta, ReduceOp::kSum); }).find("meta"),
                   std::string::npos);
               tp->Barrier();
             },
             {.comm_timeout = std::chrono::seconds(30),
              .watchdog = told.Options(/*tell_after=*/milliseconds(60'000))});
  });
  EXPECT_NE(message.find(": deadlock: "), std::string::npos) << message;
}

// Rank 1 comes when it has been told of twice.
TEST(WatchdogTest, ASlowRankIsNamedAndTheRunGoesOn) {
  Told told;
  const auto begin = std::chrono::steady_clock::now();
  std::barrier both_are_busy(2);
  RunRanks(2,
           [&](World& world) {
             world.flight_recorder().SetActivity("data loader");
             both_are_busy.arrive_and_wait();
             while (world.rank() == 1 && told.lines().size() < 2)
               std::this_thread::sleep_for(milliseconds(5));
             BarrierOf(world, "dp", {0, 1});
           },
           {.watchdog = told.Options()});
  const auto lasted = std::chrono::steady_clock::now() - begin;
  const std::vector<std::string> lines = told.lines();
  ASSERT_GE(lines.size(), 2u);
  EXPECT_LE(milliseconds(150) * (int64_t{1} << (lines.size() - 1)), lasted);  // at 150, 300, 600 ms and so on
  EXPECT_EQ(lines[0].find("weft: waiting: rank 1 has not entered (last seen: data loader, "), 0u) << lines[0];
  EXPECT_NE(lines[0].find(" ago) while rank 0 waits in barrier() #1 on axis dp"), std::string::npos);
}

// As soon as it is late, and then each time the wait has doubled; not for ever in one round.
TEST(WatchdogTest, WhatIsToldAtOnceIsToldAgainWhenTheWaitHasDoubled) {
  for (const milliseconds tell_after : {milliseconds(0), milliseconds(-5)}) {
    Told told;
    const auto begin = std::chrono::steady_clock::now();
    RunRanks(2,
             [&](World& world) {
               while (world.rank() == 1 && told.lines().size() < 3)
                 std::this_thread::sleep_for(milliseconds(5));
               BarrierOf(world, "dp", {0, 1});
             },
             {.watchdog = told.Options(tell_after)});
    const auto lasted = std::chrono::steady_clock::now() - begin;
    const size_t num_told = told.lines().size();
    ASSERT_GE(num_told, 3u);
    // At 60 ms or later, since it must be late, and then at 80, 160, 320 ms and so on.
    EXPECT_LE(milliseconds(20) * (int64_t{1} << num_told), lasted);
  }
}

// Unless a busy machine holds a call up for as long as what is told.
TEST(WatchdogTest, NothingIsToldOfARunThatMoves) {
  Told told;
  std::array<std::chrono::nanoseconds, 2> longest = {};
  RunRanks(2,
           [&](World& world) {
             const auto group = world.NewGroup("dp", {0, 1});
             auto now = std::chrono::steady_clock::now();
             const auto end = now + milliseconds(400);
             for (;;) {
               // Together, or one would enter once more than the other.
               const Tensor more = Tensor::Empty(world.allocator(), DType::kI32, {1});
               more.data<int32_t>()[0] = now < end;
               group->AllReduce(more, more, ReduceOp::kMin);
               const auto begin = std::exchange(now, std::chrono::steady_clock::now());
               longest[world.rank()] = std::max(longest[world.rank()], now - begin);
               if (more.data<int32_t>()[0] == 0) break;
             }
           },
           {.watchdog = told.Options(milliseconds(60))});
  const bool held_up = std::max(longest[0], longest[1]) >= milliseconds(60);
  EXPECT_TRUE(held_up || told.lines().empty()) << told.lines()[0];
}

// Processes: a watchdog each, and a store between them.
TEST(WatchdogTest, WatchdogsThatShareAStoreComeToOneVerdict) {
  Told told;
  HashStore store;
  std::mutex mutex;
  std::vector<std::string> errors(3);
  std::vector<std::unique_ptr<FlightRecorder>> recorders;
  std::vector<std::unique_ptr<Watchdog>> watchdogs;
  for (int rank = 0; rank < 3; ++rank) {
    recorders.push_back(std::make_unique<FlightRecorder>());
    FlightRecorder& recorder = *recorders.back();
    FlightRecorder::OpenedGroup* const dp = recorder.OpenGroup("dp", {0, 1, 2});
    FlightRecorder::OpenedGroup* const tp = rank > 0 ? recorder.OpenGroup("tp", {1, 2}) : nullptr;
    FlightEntry barrier;
    barrier.sequence = 1;
    barrier.issued_ns = FlightClock();
    recorder.Issue(rank == 2 ? tp : dp, barrier);
    watchdogs.push_back(std::make_unique<Watchdog>(3, &store, told.Options(milliseconds(60'000))));
    watchdogs.back()->Watch({rank, &recorder, [&, rank](absl::StatusCode, const std::string& text) {
                               const std::lock_guard<std::mutex> lock(mutex);
                               errors[rank] = text;
                             }});
  }
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (;;) {
    std::this_thread::sleep_for(milliseconds(20));
    const std::lock_guard<std::mutex> lock(mutex);
    if (!errors[0].empty() && !errors[1].empty() && !errors[2].empty()) break;
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
  }
  watchdogs.clear();
  EXPECT_EQ(errors[0].find("deadlock: "), 0u) << errors[0];
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(errors[2], errors[0]);
  EXPECT_EQ(told.lines(), std::vector<std::string>{"weft: " + errors[0]});
}

// Nobody answers for rank 1: its process has been stopped.
TEST(WatchdogTest, ASilentRankIsNamed) {
  Told told;
  HashStore store;
  FlightRecorder recorder;
  FlightEntry barrier;
  barrier.sequence = 1;
  barrier.issued_ns = FlightClock();
  recorder.Issue(recorder.OpenGroup("dp", {0, 1}), barrier);
  Watchdog watchdog(2, &store, told.Options());
  watchdog.Watch({0, &recorder, [](absl::StatusCode, const std::string& text) { ADD_FAILURE() << text; }});
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (told.lines().empty()) {
    std::this_thread::sleep_for(milliseconds(20));
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
  }
  EXPECT_EQ(told.lines()[0].find("weft: waiting: rank 1 is not answering for "), 0u) << told.lines()[0];
  // Once it is known to be gone, that is what is told.
  watchdog.Forget(1, "exited with code 9");
  const std::string gone =
      "weft: waiting: rank 1 exited with code 9 while rank 0 waits in barrier() #1 on axis dp";
  while (told.lines().back() != gone) {
    std::this_thread::sleep_for(milliseconds(20));
    ASSERT_LT(std::chrono::steady_clock::now(), give_up) << told.lines().back();
  }
}

// What a rank waits in; `seconds` ago it was issued. The clock may begin when the machine does, and nothing is older than that: on
// one that has just started, as long ago as half of it.
FlightEntry Issued(CollectiveKind kind, uint64_t sequence, int64_t seconds = 0) {
  FlightEntry entry;
  entry.kind = kind;
  entry.sequence = sequence;
  const int64_t now = FlightClock();
  entry.issued_ns = now - std::min(seconds * 1'000'000'000, now / 2);
  return entry;
}

// Waits for a line that has `text`; "" if none comes.
std::string LineWith(const Told& told, const std::string& text) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < give_up) {
    for (const std::string& line : told.lines()) {
      if (line.find(text) != std::string::npos) return line;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return "";
}

// A name in another encoding than UTF-8 is one in a rank's own status and in those of others.
TEST(WatchdogTest, NamesMayBeAnyBytes) {
  Told told;
  HashStore store;
  std::vector<std::unique_ptr<FlightRecorder>> recorders;
  std::vector<std::unique_ptr<Watchdog>> watchdogs;
  for (int rank = 0; rank < 2; ++rank) {
    recorders.push_back(std::make_unique<FlightRecorder>());
    FlightRecorder& recorder = *recorders.back();
    recorder.Issue(recorder.OpenGroup("t\xf6rk", {0, 1}), Issued(CollectiveKind::kBarrier, 1));
    watchdogs.push_back(std::make_unique<Watchdog>(2, &store, told.Options()));
    watchdogs.back()->Watch(
        {rank, &recorder, [](absl::StatusCode, const std::string& text) { ADD_FAILURE() << text; }});
  }
  EXPECT_NE(LineWith(told, "all members have entered, but ranks 0, 1 wait in barrier() #1 on axis t"), "");
}

// As that of thousands of ranks, which is longer than a store's keys may be.
TEST(WatchdogTest, AGroupMayHaveALongKey) {
  Told told;
  HashStore store;
  FlightRecorder recorder;
  const std::string name(20'000, 'x');
  recorder.Issue(recorder.OpenGroup(name, {0, 1}), Issued(CollectiveKind::kBarrier, 1));
  Watchdog watchdog(2, &store, told.Options());
  watchdog.Watch({0, &recorder, [](absl::StatusCode, const std::string& text) { ADD_FAILURE() << text; }});
  EXPECT_NE(LineWith(told, "while rank 0 waits in barrier() #1 on axis " + name), "");
}

class RefusingStore : public ForwardingStore {
 public:
  RefusingStore() : ForwardingStore(std::make_shared<HashStore>()) {}
  void Set(absl::string_view /*key*/, absl::string_view /*value*/) override {
    ++num_refused;
    ThrowInvalidArgument("the value is too long");
  }
  std::atomic<int> num_refused = 0;
};

// Such as a status. For others that rank is one that does not answer.
TEST(WatchdogTest, WhatTheStoreRefusesIsToldOnce) {
  Told told;
  RefusingStore store;
  FlightRecorder recorder;
  Watchdog watchdog(2, &store, told.Options());
  watchdog.Watch({0, &recorder, [](absl::StatusCode, const std::string& text) { ADD_FAILURE() << text; }});
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (store.num_refused < 3) {
    store.Add("hang/call", 1);
    std::this_thread::sleep_for(milliseconds(5));
    ASSERT_LT(std::chrono::steady_clock::now(), give_up);
  }
  EXPECT_EQ(told.lines(), std::vector<std::string>{"weft: hangs cannot be explained: the value is too long"});
}

// A rank that did not answer in one stall is not silent since then in the next.
TEST(WatchdogTest, TheSecondsOfSilenceAreThoseOfThisStall) {
  Told told;
  HashStore store;
  FlightRecorder recorder;
  FlightRecorder::OpenedGroup* const dp = recorder.OpenGroup("dp", {0, 1});
  const uint64_t first = recorder.Issue(dp, Issued(CollectiveKind::kBarrier, 1));
  Watchdog watchdog(2, &store, told.Options());
  watchdog.Watch({0, &recorder, [](absl::StatusCode, const std::string& text) { ADD_FAILURE() << text; }});
  ASSERT_NE(LineWith(told, "barrier() #1 "), "");
  recorder.End(first, FlightClock(), /*ok=*/true);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // nothing is late
  const auto begin = std::chrono::steady_clock::now();
  recorder.Issue(dp, Issued(CollectiveKind::kBarrier, 2));
  const std::string line = LineWith(told, "barrier() #2 ");
  const std::chrono::duration<double> stalled = std::chrono::steady_clock::now() - begin;
  const std::string before = "rank 1 is not answering for ";
  ASSERT_NE(line.find(before), std::string::npos) << line;
  EXPECT_LE(std::stod(line.substr(line.find(before) + before.size())), stalled.count() + 0.1) << line;
}

// A group numbers collectives and each member's messages apart. Both are so old that each is told of once: the next time
// would come after 77 s. (Sooner on a machine that has just started, where a defect may not show then.)
TEST(WatchdogTest, AMessageAndACollectiveOfOneNumberAreBothTold) {
  for (const bool has_store : {false, true}) {
    Told told;
    HashStore store;
    FlightRecorder recorder;
    FlightRecorder peer;
    FlightRecorder::OpenedGroup* const dp = recorder.OpenGroup("dp", {0, 1});
    peer.OpenGroup("dp", {0, 1});
    const uint64_t message = recorder.Issue(dp, Issued(CollectiveKind::kSendRecv, 1, /*seconds=*/40));
    Watchdog watchdog(2, has_store ? &store : nullptr, told.Options());
    const auto fail = [](absl::StatusCode, const std::string& text) { ADD_FAILURE() << text; };
    watchdog.Watch({0, &recorder, fail});
    watchdog.Watch({1, &peer, fail});
    EXPECT_NE(LineWith(told, "send_recv"), "");
    recorder.End(message, FlightClock(), /*ok=*/true);
    recorder.Issue(dp, Issued(CollectiveKind::kBarrier, 1, /*seconds=*/40));
    EXPECT_NE(LineWith(told, "barrier() #1 "), "");
  }
}

class CountingStore : public ForwardingStore {
 public:
  CountingStore() : ForwardingStore(std::make_shared<HashStore>()) {}
  std::optional<std::string> TryGet(absl::string_view key) override {
    ++num_reads;
    return ForwardingStore::TryGet(key);
  }
  std::atomic<int> num_reads = 0;
};

TEST(WatchdogTest, AnIntervalOfForEverNeverLooks) {
  Told told;
  CountingStore store;
  WatchdogOptions options = told.Options();
  options.interval = milliseconds::max();
  FlightRecorder recorder;
  Watchdog watchdog(2, &store, options);
  watchdog.Watch({0, &recorder, [](absl::StatusCode, const std::string& text) { ADD_FAILURE() << text; }});
  std::this_thread::sleep_for(milliseconds(200));
  watchdog.Forget(0, "has returned");
  EXPECT_EQ(store.num_reads, 0);
}

}  // namespace
}  // namespace weft
