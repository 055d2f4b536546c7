// A rank that returns behind its last collective, while another one is late in it and asks what has been called.

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "runtime/store/forwarding_store.h"
#include "runtime/store/store.h"
#include "tests/runtime/comm/nccl/nccl_calls.h"
#include "tests/runtime/comm/nccl/nccl_ranks.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

// What the ranks have come to.
struct Progress {
  std::atomic<bool> has_answered = false;  // rank 0, before its last call
  std::atomic<bool> is_asked = false;      // rank 1 looks for its answer
  std::atomic<bool> has_finished = false;
};

// What rank 1 finds when it first looks at what rank 0 has said, which is when rank 0 has finished.
enum class Finds {
  kAnswerFromBefore,  // and that it had not finished
  kAnswerAndItsEnd,
  kItsEndFirst,
};

class SlowStore final : public ForwardingStore {
 public:
  SlowStore(std::shared_ptr<Store> store, int rank, Finds finds, Progress& progress)
      : ForwardingStore(std::move(store)), rank_(rank), finds_(finds), progress_(progress) {}

  void Set(absl::string_view key, absl::string_view value) override {
    ForwardingStore::Set(key, value);
    if (absl::EndsWith(key, "at/0")) progress_.has_answered = true;
    if (absl::EndsWith(key, "finished/0")) progress_.has_finished = true;
  }
  bool Check(absl::Span<const std::string> keys) override {
    const bool waits =
        finds_ == Finds::kItsEndFirst && keys.size() == 1 && absl::EndsWith(keys[0], "finished/0");
    if (waits && progress_.has_answered) AwaitItsEnd();
    return ForwardingStore::Check(keys);
  }
  std::optional<std::string> TryGet(absl::string_view key) override {
    std::optional<std::string> before = ForwardingStore::TryGet(key);
    if (!absl::EndsWith(key, "at/0") || !before.has_value() || !AwaitItsEnd()) return before;
    return finds_ == Finds::kAnswerFromBefore ? before : ForwardingStore::TryGet(key);
  }

 private:
  // Whether it had to: the first time, on rank 1.
  bool AwaitItsEnd() {
    if (rank_ != 1 || progress_.is_asked.exchange(true)) return false;
    while (!progress_.has_finished) std::this_thread::sleep_for(milliseconds(1));
    return true;
  }

  const int rank_;
  const Finds finds_;
  Progress& progress_;
};

TEST(NcclLastLogTest, WhoReturnsBehindACollectiveHasCome) {
  for (const Finds finds : {Finds::kAnswerFromBefore, Finds::kAnswerAndItsEnd, Finds::kItsEndFirst}) {
    Progress progress;
    const auto body = [&](World& world) {
      const auto group = world.NewGroup("dp", {0, 1});
      while (world.rank() == 0 && !(progress.has_answered && progress.is_asked)) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      group->Barrier();
      if (world.rank() == 0) return;
      while (!progress.has_finished) std::this_thread::sleep_for(milliseconds(1));
      // By then there is a verdict, if there is one.
      std::this_thread::sleep_for(milliseconds(20));
      SendToItself(world, *group);
    };
    RunNcclRanks(2, body, std::make_shared<FakeNccl>(), std::chrono::minutes(2),
                 {.tell = [](const std::string&) {}}, {}, [&](std::shared_ptr<Store> store, int rank) {
                   return std::make_shared<SlowStore>(std::move(store), rank, finds, progress);
                 });
    EXPECT_TRUE(progress.is_asked);
  }
}

}  // namespace
}  // namespace weft
