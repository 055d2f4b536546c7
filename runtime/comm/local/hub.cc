#include "runtime/comm/local/hub.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {

LocalHub::LocalHub(int num_ranks)
    : spin_(num_ranks <= static_cast<int>(std::thread::hardware_concurrency())), finished_(num_ranks) {}

std::shared_ptr<LocalGroup> LocalHub::NewGroup(const std::string& name, const std::vector<int>& ranks) {
  auto group = std::make_shared<LocalGroup>(name, ranks, spin_);
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (finished_[ranks[member]]) group->MarkDeparted(static_cast<int>(member));
  }
  std::erase_if(groups_, [](const std::weak_ptr<LocalGroup>& other) { return other.expired(); });
  groups_.push_back(group);
  return group;
}

std::shared_ptr<LocalGroup> LocalHub::Join(int world_rank, const std::string& name,
                                           const std::vector<int>& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (abort_reason_.has_value()) {
    Throw(absl::StatusCode::kAborted, "new group '", name, "': ", *abort_reason_);
  }
  Family& family = families_[ranks];
  family.num_made.resize(ranks.size());
  const size_t member = std::lower_bound(ranks.begin(), ranks.end(), world_rank) - ranks.begin();
  const int64_t generation = family.num_made[member]++;
  Meeting& meeting = family.open[generation];
  if (meeting.group == nullptr) meeting.group = NewGroup(name, ranks);
  std::shared_ptr<LocalGroup> group = meeting.group;
  if (++meeting.num_joined == group->size()) family.open.erase(generation);
  if (group->name() != name) {
    const std::string message =
        absl::StrCat("group ", generation, " of these ranks: rank ", world_rank, " names it '", name,
                     "', a peer '", group->name(), "': members must make their groups in the same order");
    group->Fail(absl::StatusCode::kInvalidArgument, message);
    ThrowInvalidArgument(message);
  }
  return group;
}

void LocalHub::AbortAll(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (abort_reason_.has_value()) return;
  abort_reason_ = reason;
  for (const std::weak_ptr<LocalGroup>& weak : groups_) {
    if (const std::shared_ptr<LocalGroup> group = weak.lock()) {
      group->Fail(absl::StatusCode::kAborted, absl::StrCat("group '", group->name(), "': ", reason));
    }
  }
}

void LocalHub::FinishRank(int world_rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  finished_[world_rank] = true;
  for (const std::weak_ptr<LocalGroup>& weak : groups_) {
    const std::shared_ptr<LocalGroup> group = weak.lock();
    if (group == nullptr) continue;
    const std::vector<int>& ranks = group->ranks();
    const auto found = std::find(ranks.begin(), ranks.end(), world_rank);
    if (found != ranks.end()) group->MarkDeparted(static_cast<int>(found - ranks.begin()));
  }
}

}  // namespace weft
