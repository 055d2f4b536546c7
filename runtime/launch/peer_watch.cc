#include "runtime/launch/peer_watch.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr char kDeadKey[] = "dead";  // "<rank> <how>", of the last of them
constexpr char kNumDoneKey[] = "num_done";
constexpr char kNumToldKey[] = "num_told";
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

// What kDeadKey says.
struct Gone {
  int rank = -1;
  std::string how = {};
};

Gone GoneOf(const std::string& text) {
  const size_t space = text.find(' ');
  Gone gone = {.how = space == std::string::npos ? text : text.substr(space + 1)};
  if (!absl::SimpleAtoi(text.substr(0, space), &gone.rank)) gone.rank = -1;
  return gone;
}

// For whoever keeps the store, and is about to go; a launcher stays.
void Acknowledge(JobStore& store) noexcept {
  try {
    store.store()->Add(kNumToldKey, 1);
  } catch (const std::exception&) {
    // Nobody waits for it any more.
  }
}

// How another process is gone, once this one has said that it has heard.
std::string Hear(JobStore& store, const Gone& gone) {
  if (!store.launcher_keeps_it()) {
    Acknowledge(store);
    return gone.how;
  }
  if (gone.how.rfind("failed: ", 0) == 0) return gone.how;
  return LauncherSays(*store.store(), gone.rank).value_or(gone.how);
}

void SetDead(JobStore& store, int rank, const std::string& how) {
  // The first failure is the cause of the others.
  store.store()->CompareSet(kDeadKey, "", Dead(rank, how));
}

// Waits until `count` processes have counted themselves under `key`, or `is_over`.
void AwaitCount(JobStore& store, const char* key, int count, absl::FunctionRef<bool()> is_over) {
  while (!is_over()) {
    const std::optional<std::string> text = store.store()->TryGet(key);
    int counted = 0;
    if (text.has_value() && absl::SimpleAtoi(*text, &counted) && counted >= count) return;
    std::this_thread::sleep_for(milliseconds(2));
  }
}

// Before the store goes with this process.
void AwaitTold(JobStore& store, int world_size) {
  if (!store.hosts_server() || world_size == 1) return;
  const Clock::time_point deadline = Clock::now() + milliseconds(1000);
  AwaitCount(store, kNumToldKey, world_size - 1, [&] { return Clock::now() >= deadline; });
}

}  // namespace

void LeaveLastWill(JobStore& store, int rank) {
  store.SetOnDisconnect(kDeadKey, Dead(rank, "has died, or cannot be reached"));
}

void TellEarlyFailure(JobStore& store, int rank, int world_size, const std::string& how) noexcept {
  try {
    SetDead(store, rank, how);
    AwaitTold(store, world_size);
  } catch (const std::exception&) {
    // Without a store nobody can be told; they notice that it is gone.
  }
}

void ThrowIfPeerIsGone(JobStore& store) {
  const std::optional<std::string> text = store.store()->TryGet(kDeadKey);
  if (!text.has_value()) return;
  const Gone gone = GoneOf(*text);
  Throw(absl::StatusCode::kAborted, "rank ", gone.rank, " ", Hear(store, gone));
}

PeerWatch::PeerWatch(JobStore& store, int rank, int world_size,
                     std::function<void(int rank, const std::string& how)> told)
    : store_(store), rank_(rank), world_size_(world_size), told_(std::move(told)) {
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
      if (stop_.load()) return;
      dead_.store(true);
      Tell(-1, error.message());
      return;
    }
    const Gone gone = GoneOf(text);
    if (gone.rank == rank_) return;  // its own failure, which it knows
    const std::string how = Hear(store_, gone);
    dead_.store(true);
    Tell(gone.rank, how);
    return;
  }
}

void PeerWatch::Tell(int rank, const std::string& how) {
  if (!stop_.load() && !is_done_.load()) told_(rank, how);
}

void PeerWatch::TellFailure(const std::string& how) noexcept {
  try {
    SetDead(store_, rank_, how);
    if (!dead_.load()) AwaitTold(store_, world_size_);
  } catch (const std::exception&) {
    // Without a store nobody can be told; they notice that it is gone.
  }
  Stop();
  store_.Farewell(/*has_failed=*/[] { return true; });
}

void PeerWatch::Finish() noexcept {
  // From here on the end of the store is no failure to a process that does not keep it.
  is_done_.store(!store_.hosts_server());
  try {
    store_.store()->Add(kNumDoneKey, 1);
    if (store_.hosts_server()) {
      AwaitCount(store_, kNumDoneKey, world_size_, [this] { return dead_.load(); });
    }
  } catch (const std::exception&) {
    // The store has ended first: so has the job.
  }
  is_done_.store(true);
  // The watch goes on: others may fail while this waits for the server's end.
  store_.Farewell(/*has_failed=*/[this] { return dead_.load(); });
  Stop();
}

}  // namespace weft
