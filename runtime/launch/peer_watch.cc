#include "runtime/launch/peer_watch.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

constexpr char kDeadKey[] = "dead";  // "<rank> <how>", of the last of them
constexpr char kNumDoneKey[] = "num_done";
// A launcher reaps a worker this soon after its connection has broken.
constexpr milliseconds kLauncherTakes{300};

std::string Dead(int rank, const std::string& how) { return absl::StrCat(rank, " ", how); }

// How long a question to the server may last: the end of a run waits for it. Seldom where there are many.
milliseconds Patience(int world_size) { return milliseconds(std::clamp(world_size * 5, 100, 2000)); }

// What the launcher wrote of the end of `rank`, if it does in time: "exited with code 9".
std::optional<std::string> LauncherSays(Store& store, int rank) {
  try {
    const std::string text = store.Get(absl::StrCat("exit/", rank), kLauncherTakes);
    const std::string prefix = absl::StrCat("rank ", rank, " ");
    return text.rfind(prefix, 0) == 0 ? text.substr(prefix.size()) : text;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

PeerWatch::PeerWatch(JobStore& store, int rank, int world_size,
                     std::function<void(int rank, const std::string& how)> told)
    : store_(store), rank_(rank), world_size_(world_size), told_(std::move(told)) {
  store_.SetOnDisconnect(kDeadKey, Dead(rank, "has died, or cannot be reached"));
  thread_ = std::thread([this] { Loop(); });
}

PeerWatch::~PeerWatch() { Stop(); }

void PeerWatch::Stop() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

void PeerWatch::Loop() {
  while (!stop_.load()) {
    std::string text;
    try {
      text = store_.store()->Get(kDeadKey, Patience(world_size_));
    } catch (const Error& error) {
      if (error.code() == absl::StatusCode::kDeadlineExceeded) continue;
      if (!stop_.load()) {
        dead_.store(true);
        told_(-1, error.message());
      }
      return;
    }
    const size_t space = text.find(' ');
    int rank = -1;
    if (!absl::SimpleAtoi(text.substr(0, space), &rank)) rank = -1;
    if (rank == rank_) return;  // its own failure, which it knows
    // For who keeps the store and is about to go; a launcher's stays.
    if (!store_.launcher_keeps_it()) Acknowledge();
    std::string how = space == std::string::npos ? text : text.substr(space + 1);
    if (store_.launcher_keeps_it() && how.rfind("failed: ", 0) != 0)
      how = LauncherSays(*store_.store(), rank).value_or(how);
    dead_.store(true);
    if (!stop_.load()) told_(rank, how);
    return;
  }
}

void PeerWatch::Acknowledge() noexcept {
  try {
    store_.store()->Add("num_told", 1);
  } catch (const std::exception&) {
    // Nobody waits for it any more.
  }
}

void PeerWatch::AwaitCount(const char* key, int count, std::chrono::steady_clock::time_point deadline) {
  while (std::chrono::steady_clock::now() < deadline) {
    const std::optional<std::string> text = store_.store()->TryGet(key);
    int counted = 0;
    if (text.has_value() && absl::SimpleAtoi(*text, &counted) && counted >= count) return;
    if (key == kNumDoneKey && dead_.load()) return;
    std::this_thread::sleep_for(milliseconds(2));
  }
}

void PeerWatch::TellFailure(const std::string& how) noexcept {
  try {
    // The first failure is the cause of the others.
    store_.store()->CompareSet(kDeadKey, "", Dead(rank_, how));
    if (store_.hosts_server() && !dead_.load()) {
      AwaitCount("num_told", world_size_ - 1, std::chrono::steady_clock::now() + milliseconds(1000));
    }
  } catch (const std::exception&) {
    // Without a store nobody can be told; they notice that it is gone.
  }
  Stop();
  store_.Farewell();
}

void PeerWatch::Finish() noexcept {
  try {
    store_.store()->Add(kNumDoneKey, 1);
    if (store_.hosts_server()) {
      AwaitCount(kNumDoneKey, world_size_, std::chrono::steady_clock::time_point::max());
    }
  } catch (const std::exception&) {
    // The store has ended first: so has the job.
  }
  Stop();
  store_.Farewell();
}

}  // namespace weft
