// The thread that gives this node's signs of life and looks for those of the others, what it finds, and how the node leaves.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/store/store_rules.h"
#include "tools/launcher/rendezvous/store_rendezvous.h"

namespace weft {

void StoreRendezvous::Watch() {
  try {
    Liveness liveness(*store_, options_.beat, options_.silence);
    while (!stop_) {
      try {
        WatchOnce(liveness);
      } catch (const Error& error) {
        // A node without workers goes on when there is room again.
        if (error.code() != absl::StatusCode::kResourceExhausted || IsInGeneration()) throw;
        std::this_thread::sleep_for(options_.poll);
      }
    }
  } catch (const std::exception& error) {
    // Nothing can be agreed on any more, not even this.
    const GenerationEnd end = {
        .kind = GenerationEnd::Kind::kLost,
        .exit_code = 1,
        .headline = absl::StrCat("node ", options_.host, " lost the job's store: ", error.what())};
    const std::lock_guard<std::mutex> lock(mutex_);
    SetEndLocked(current_.generation, end);
  }
}

void StoreRendezvous::WatchOnce(Liveness& liveness) {
  // However seldom the caller looks, signs of life are given.
  const std::chrono::milliseconds wait = std::min(options_.poll, options_.beat);
  liveness.Beat(options_.id);
  beaten_at_ = Clock::now();
  MeetingState current;
  bool ended = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    current = current_;
    ended = end_.has_value();
  }
  if (current.generation < 0 || ended) {
    std::this_thread::sleep_for(wait);
    return;
  }
  try {
    const std::string end = store_->Get(EndKey(current.generation), wait);
    SetEnd(current.generation, GenerationEnd::FromText(end));
    return;
  } catch (const Error& error) {
    if (error.code() != absl::StatusCode::kDeadlineExceeded) throw;
  }
  WatchNodes(current, liveness);
}

void StoreRendezvous::WatchNodes(const MeetingState& state, Liveness& liveness) {
  const size_t self = static_cast<size_t>(state.Find(options_.id) - state.nodes.data());
  const MeetingNode& next = state.nodes[(self + 1) % state.nodes.size()];
  if (next.id != options_.id && liveness.Of(next.id) == Liveness::Life::kSilent) {
    Publish({.kind = GenerationEnd::Kind::kLost,
             .restart = true,
             .exit_code = 1,
             .node = next.id,
             .headline = absl::StrCat("node ", next.host, " was lost: no sign of life for ",
                                      Seconds(options_.silence))});
    return;
  }
  if (self != 0 || static_cast<int>(state.nodes.size()) >= state.max_nodes) return;
  // A job that is about to finish does not begin again.
  if (store_->TryGet(absl::StrCat("done/", state.generation))) return;
  const MeetingState present = MeetingState::FromText(store_->TryGet(kStateKey).value_or(""));
  for (const std::string& id : present.waiting) {
    if (liveness.Of(id) != Liveness::Life::kAlive) continue;
    Publish({.kind = GenerationEnd::Kind::kGrow, .restart = true, .headline = "a node joins"});
    return;
  }
}

bool StoreRendezvous::IsInGeneration() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return current_.generation >= 0 && !end_;
}

void StoreRendezvous::StopWatching() {
  stop_ = true;
  if (watcher_.joinable()) watcher_.join();
}

void StoreRendezvous::Leave() {
  StopWatching();
  if (current_.generation < 0) return;
  const std::string key = LeftKey(current_.generation);
  const std::optional<GenerationEnd> end = End();
  const bool one_is_gone = end && end->kind == GenerationEnd::Kind::kLost;
  // A node that was lost is not counted, also where it lives.
  const bool is_counted =
      !looks_on_ && left_generation_ != current_.generation && !(one_is_gone && IsMyEnd(*end));
  // Who looks adds nothing: an Add of 0 is a write, which a store with a journal keeps.
  const auto num_left = [&] { return SumOf(key, store_->TryGet(key).value_or("0"), /*amount=*/0); };
  int64_t left = is_counted ? store_->Add(key, 1) : num_left();
  const int64_t all = static_cast<int64_t>(current_.nodes.size()) - (one_is_gone ? 1 : 0);
  // The store may be this process's: the others must have read how it ended, and saved what they have to.
  const std::chrono::milliseconds saves =
      options_.holds_store && end ? end->grace : std::chrono::milliseconds(0);
  const Clock::time_point deadline = Clock::now() + options_.silence + saves;
  while (left < all && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    left = num_left();
  }
}

void StoreRendezvous::SetEnd(int64_t generation, const GenerationEnd& end) {
  const std::lock_guard<std::mutex> lock(mutex_);
  SetEndLocked(generation, end);
}

void StoreRendezvous::SetEndLocked(int64_t generation, const GenerationEnd& end) {
  // The watcher may come late with the end of the generation before.
  if (end_ || generation != current_.generation) return;
  end_ = end;
  const uint64_t one = 1;
  if (write(event_.get(), &one, sizeof(one)) < 0) return;  // full: it polls as readable already
}

std::string StoreRendezvous::EndKey(int64_t generation) const { return absl::StrCat("end/", generation); }

std::string StoreRendezvous::LeftKey(int64_t generation) const { return absl::StrCat("left/", generation); }

}  // namespace weft
