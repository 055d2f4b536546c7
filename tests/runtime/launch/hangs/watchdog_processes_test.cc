// Watchdogs of several processes, which a store connects: one of them judges for all.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/launch/hangs/rank_status.h"
#include "runtime/launch/hangs/watchdog.h"
#include "runtime/store/forwarding_store.h"
#include "runtime/store/hash_store.h"
#include "tests/runtime/launch/hangs/told.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr char kCallKey[] = "hang/call";

// Waits until `is_so`, half a minute at most: whether it is.
bool Await(const std::function<bool()>& is_so) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() >= give_up) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

bool Awaits(const Told& told, const std::string& part) {
  return told.Await([&](const std::string& line) { return absl::StrContains(line, part); });
}

FlightEntry Barrier(uint64_t sequence) {
  FlightEntry entry;
  entry.kind = CollectiveKind::kBarrier;
  entry.sequence = sequence;
  entry.issued_ns = FlightClock();
  return entry;
}

// A rank with a watchdog of its own, and what has ended its groups.
class Process {
 public:
  Process(int rank, int world_size, Store* store, const WatchdogOptions& options)
      : rank_(rank), watchdog_(world_size, store, options) {}

  FlightRecorder& recorder() { return recorder_; }
  Watchdog& watchdog() { return watchdog_; }
  void Watch() {
    watchdog_.Watch({rank_, &recorder_, [this](absl::StatusCode, const std::string& text) {
                       const std::lock_guard<std::mutex> lock(mutex_);
                       error_ = text;
                     }});
  }
  std::string error() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

 private:
  const int rank_;
  mutable std::mutex mutex_;
  std::string error_;
  FlightRecorder recorder_;
  Watchdog watchdog_;  // last: its thread uses the rest
};

class CountingStore final : public ForwardingStore {
 public:
  explicit CountingStore(std::shared_ptr<Store> store) : ForwardingStore(std::move(store)) {}

  std::optional<std::string> TryGet(absl::string_view key) override {
    num_statuses_read_ += absl::StartsWith(key, "hang/status/");
    return ForwardingStore::TryGet(key);
  }
  int64_t num_statuses_read() const { return num_statuses_read_; }

 private:
  std::atomic<int64_t> num_statuses_read_ = 0;
};

// Each rank that is late would otherwise read the statuses of all: of 512 ranks a quarter of a million reads each time. The time
// stands still: however busy the machine, every answer comes in time, and nobody takes whoever judges for stopped.
TEST(WatchdogProcessesTest, OneReadsTheStatusesOfAll) {
  constexpr int kRanks = 32;
  Told told;
  WatchdogOptions options = told.Options();
  options.now = [] { return std::chrono::steady_clock::time_point(); };
  const auto shared = std::make_shared<HashStore>();
  std::vector<std::unique_ptr<CountingStore>> stores;
  std::vector<std::unique_ptr<Process>> processes;
  std::vector<int> all;
  for (int rank = 0; rank < kRanks; ++rank) {
    all.push_back(rank);
    stores.push_back(std::make_unique<CountingStore>(shared));
    processes.push_back(std::make_unique<Process>(rank, kRanks, stores.back().get(), options));
    processes.back()->Watch();
  }
  // When all are watched: a call that one missed it would never answer.
  for (int rank = 0; rank < kRanks; ++rank) {
    FlightRecorder& recorder = processes[rank]->recorder();
    FlightRecorder::OpenedGroup* const dp = recorder.OpenGroup("dp", all);
    recorder.SetActivity("data loader");
    if (rank != 7) recorder.Issue(dp, Barrier(1));
  }
  EXPECT_TRUE(Awaits(told,
                     "weft: waiting: rank 7 has not entered (last seen: data loader, T s ago) while "
                     "ranks 0-6, 8-31 wait in barrier() #1 on axis dp"))
      << told.Text();
  std::this_thread::sleep_for(milliseconds(400));
  for (const auto& process : processes) EXPECT_EQ(process->error(), "");
  processes.clear();
  EXPECT_EQ(std::count_if(stores.begin(), stores.end(),
                          [](const auto& store) { return store->num_statuses_read() > 0; }),
            1);
}

// Ranks 0 to 2 are in a circle; rank 3 waits for rank 4, which comes late.
TEST(WatchdogProcessesTest, ADeadlockEndsThoseThatWaitInIt) {
  constexpr int kRanks = 5;
  Told told;
  HashStore store;
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    processes.push_back(std::make_unique<Process>(rank, kRanks, &store, told.Options()));
    FlightRecorder& recorder = processes.back()->recorder();
    if (rank <= 1) recorder.Issue(recorder.OpenGroup("dp", {0, 1, 2}), Barrier(1));
    if (rank == 2) recorder.Issue(recorder.OpenGroup("tp", {1, 2}), Barrier(1));
    if (rank == 3) recorder.Issue(recorder.OpenGroup("dp", {3, 4}), Barrier(1));
    processes.back()->Watch();
  }
  for (int rank = 0; rank <= 2; ++rank) {
    EXPECT_TRUE(Await([&] { return !processes[rank]->error().empty(); })) << rank;
    EXPECT_TRUE(absl::StartsWith(processes[rank]->error(), "deadlock: ")) << processes[rank]->error();
    EXPECT_EQ(processes[rank]->error(), processes[0]->error());
  }
  EXPECT_TRUE(Awaits(told, "weft: waiting: rank 4 has not entered")) << told.Text();
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(processes[3]->error(), "");
}

// As that of thousands of ranks: to read what they have answered takes longer than others wait for the next call.
class StoreOfMany final : public ForwardingStore {
 public:
  explicit StoreOfMany(milliseconds delay) : ForwardingStore(std::make_shared<HashStore>()), delay_(delay) {}

  std::optional<std::string> TryGet(absl::string_view key) override {
    if (absl::StartsWith(key, "hang/status/")) std::this_thread::sleep_for(delay_);
    return ForwardingStore::TryGet(key);
  }

 private:
  const milliseconds delay_;
};

TEST(WatchdogProcessesTest, ADeadlockIsFoundHoweverLongTheReadingTakes) {
  constexpr int kRanks = 5;
  Told told;
  const WatchdogOptions options = told.Options();
  StoreOfMany store(/*delay=*/20 * options.interval);
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    processes.push_back(std::make_unique<Process>(rank, kRanks, &store, options));
    FlightRecorder& recorder = processes.back()->recorder();
    FlightRecorder::OpenedGroup* const dp = recorder.OpenGroup("dp", {0, 1, 2, 3, 4});
    recorder.Issue(rank == 4 ? recorder.OpenGroup("tp", {3, 4}) : dp, Barrier(1));
    processes.back()->Watch();
  }
  for (const auto& process : processes) {
    ASSERT_TRUE(Await([&] { return absl::StartsWith(process->error(), "deadlock: "); })) << told.Text();
  }
}

// As of a process that has been stopped: it has called, and does not judge.
TEST(WatchdogProcessesTest, AnotherJudgesWhereTheOneThatDidStandsStill) {
  Told told;
  HashStore store;
  store.Set(kCallKey, "5 1");
  Process process(0, 2, &store, told.Options());
  process.recorder().Issue(process.recorder().OpenGroup("dp", {0, 1}), Barrier(1));
  process.Watch();
  EXPECT_TRUE(Awaits(told, "weft: waiting: rank 1 is not answering for ")) << told.Text();
}

// Its operation has ended, or the rank itself.
TEST(WatchdogProcessesTest, WhoIsNoLongerLateLetsOthersJudge) {
  for (const bool has_ended : {false, true}) {
    Told told;
    HashStore store;
    Process process(0, 2, &store, told.Options());
    FlightRecorder& recorder = process.recorder();
    const uint64_t barrier = recorder.Issue(recorder.OpenGroup("dp", {0, 1}), Barrier(1));
    process.Watch();
    const auto is_judged = [&] {
      const std::optional<std::string> call = store.TryGet(kCallKey);
      return call.has_value() && absl::EndsWith(*call, " 0");
    };
    EXPECT_TRUE(Await(is_judged));
    if (has_ended) {
      process.watchdog().Forget(0, "has ended");
    } else {
      recorder.End(barrier, FlightClock(), /*ok=*/true);
    }
    EXPECT_TRUE(Await([&] { return !is_judged(); })) << store.TryGet(kCallKey).value_or("");
  }
}

// Stands for rank 1, whose answer to a call is not there yet when it is read first, and for a store that is slow then: calls
// `pass`, for time to pass.
class SlowStore final : public ForwardingStore {
 public:
  explicit SlowStore(std::function<void()> pass)
      : ForwardingStore(std::make_shared<HashStore>()), pass_(std::move(pass)) {}

  std::optional<std::string> TryGet(absl::string_view key) override {
    if (key != "hang/status/1") return ForwardingStore::TryGet(key);
    if (++num_reads_ % 2 == 1) {
      pass_();
      return std::nullopt;
    }
    const std::string call = ForwardingStore::TryGet(kCallKey).value_or("");
    return absl::StrCat(call.substr(0, call.find(' ')), " ", RankStatus{.rank = 1}.ToJson());
  }

 private:
  const std::function<void()> pass_;
  int num_reads_ = 0;  // by the one watchdog
};

// An answer has three intervals from the call to when the reading begins, not to when it ends.
TEST(WatchdogProcessesTest, AnAnswerThatIsReadEarlyIsReadAgain) {
  Told told;
  WatchdogOptions options = told.Options();
  std::atomic<int> num_intervals = 0;  // since the beginning of time, which stands still but for the store
  options.now = [&num_intervals, interval = options.interval] {
    return std::chrono::steady_clock::time_point(num_intervals.load() * interval);
  };
  SlowStore store([&] { num_intervals += 4; });
  Process process(0, 2, &store, options);
  process.recorder().Issue(process.recorder().OpenGroup("dp", {0, 1}), Barrier(1));
  process.Watch();
  EXPECT_TRUE(Awaits(told, "weft: waiting: ")) << told.Text();
  EXPECT_TRUE(absl::StartsWith(told.Text(), "weft: waiting: rank 1 has not entered")) << told.Text();
}

}  // namespace
}  // namespace weft
