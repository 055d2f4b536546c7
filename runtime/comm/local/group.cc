#include "runtime/comm/local/group.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft {

CollectiveDescriptor LocalPosting::Descriptor() const {
  CollectiveDescriptor descriptor = {.kind = kind, .dtype = dtype, .op = op};
  if (HasRoot(kind)) {
    descriptor.root = root;
  } else {
    descriptor.num_parts = static_cast<uint32_t>(parts.size());
    descriptor.fingerprint = parts.empty() ? static_cast<uint32_t>(root) : list_fingerprint;
  }
  descriptor.counts = counts.empty() ? CollectiveDescriptor::Counts{count} : counts;
  return descriptor;
}

LocalGroup::LocalGroup(std::string name, std::vector<int> ranks, bool spin)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      slots_(std::make_unique<Slot[]>(ranks_.size())),
      wait_point_(spin) {}

LocalPosting& LocalGroup::NextPosting(int member) {
  Slot& slot = slots_[member];
  return slot.postings[++slot.num_collectives % 2];
}

void LocalGroup::Arrive(int member) {
  Slot& slot = slots_[member];
  const uint64_t phase = ++slot.num_arrivals;
  slot.postings[slot.num_collectives % 2].phase.store(phase);
  // A thread that sleeps in a barrier sleeps until it is complete: the last to arrive wakes it, the others
  // need not. Of two that arrive at once, one sees both.
  if (!wait_point_.has_sleepers()) return;
  for (int peer = 0; peer < size(); ++peer) {
    if (!HasArrived(member, peer, phase)) return;
  }
  wait_point_.WakeAll();
}

template <class Ready, class Missing, class What>
void LocalGroup::Await(int member, const Ready& ready, const Missing& missing, const What& what,
                       std::chrono::milliseconds timeout) {
  int num_departed = 0;
  for (;;) {
    const bool in_time = wait_point_.Wait(
        [&] { return ready() || failed() || num_departed_.load() != num_departed; }, timeout);
    if (ready()) return;
    if (failed()) Leave(member);
    // In this order: a member that departed has arrived before, so after these loads its last arrival is seen. One that
    // departs behind them is looked at in the next round.
    num_departed = num_departed_.load();
    const std::vector<int> departed = Departed();
    const std::vector<int> awaited = missing();
    if (awaited.empty()) continue;  // they came just now
    if (!in_time) {
      FailMissing(member, awaited, what(), timeout);
      continue;
    }
    for (int peer : awaited) {
      if (std::binary_search(departed.begin(), departed.end(), peer)) {
        FailMissing(member, {peer}, what(), std::nullopt);
      }
    }
  }
}

std::vector<int> LocalGroup::Departed() const {
  std::vector<int> members;
  for (int member = 0; member < size(); ++member) {
    if (slots_[member].departed.load()) members.push_back(member);
  }
  return members;
}

void LocalGroup::AwaitAll(int member, std::chrono::milliseconds timeout) {
  const uint64_t phase = slots_[member].num_arrivals;
  int next = 0;  // all before it have arrived
  const auto ready = [&] {
    while (next < size() && HasArrived(member, next, phase)) ++next;
    return next == size();
  };
  if (ready()) return;
  const auto missing = [&] {
    std::vector<int> members;
    for (int peer = 0; peer < size(); ++peer) {
      if (!HasArrived(member, peer, phase)) members.push_back(peer);
    }
    return members;
  };
  const auto what = [&] {
    const LocalPosting& mine = posting(member, member);
    return absl::StrCat(Where(mine.kind, mine.sequence), ", ", mine.Descriptor().ToString());
  };
  Await(member, ready, missing, what, timeout);
}

void LocalGroup::AwaitReady(int member, absl::FunctionRef<bool()> ready,
                            absl::FunctionRef<std::vector<int>()> missing,
                            absl::FunctionRef<std::string()> what, std::chrono::milliseconds timeout) {
  Await(member, ready, missing, what, timeout);
}

void LocalGroup::FailMissing(int member, const std::vector<int>& missing, const std::string& what,
                             std::optional<std::chrono::milliseconds> waited) {
  const int me = ranks_[member];
  if (waited.has_value()) {
    Fail(absl::StatusCode::kDeadlineExceeded, TimeoutText(what, me, *waited, ranks_, missing));
  } else {
    Fail(absl::StatusCode::kAborted, absl::StrCat(what, ": world rank ", me, " waits for ",
                                                  WorldRanks(missing), ", whose rank function has returned"));
  }
}

LocalGroup::Access::Access(LocalGroup& group, int member) : busy_(group.slots_[member].busy) {
  // Store, then load; Leave loads in the other order. One of the two sees the other.
  busy_.store(true);
  if (group.failed()) {
    busy_.store(false);
    group.Leave(member);
  }
}

void LocalGroup::Fail(absl::StatusCode code, const std::string& message) {
  if (failure_.Set(code, message)) wait_point_.WakeAll();
}

void LocalGroup::Leave(int member) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == member) continue;
    while (slots_[peer].busy.load()) std::this_thread::yield();
  }
  failure_.Throw();
}

void LocalGroup::MarkDeparted(int member) {
  slots_[member].departed.store(true);
  num_departed_.fetch_add(1);
  wait_point_.WakeAll();
}

}  // namespace weft
