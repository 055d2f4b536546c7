#include "parallel/pipeline/deadlock.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Kind = ActionKind;

// What a rank waits for: an action of another.
struct Wait {
  int rank = 0;
  PipelineAction action;
};

class Ranks {
 public:
  explicit Ranks(const PipelineSchedule& schedule)
      : schedule_(schedule),
        next_(schedule.num_ranks(), 0),
        forward_(static_cast<size_t>(schedule.num_stages()) * schedule.num_microbatches, false),
        gradient_(forward_.size(), false),
        lowered_(schedule.lowered()) {}

  std::string Deadlock() {
    // Going on never takes another rank's chance away, so the order in which ranks are tried does not matter.
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
        while (!AtEnd(rank) && Advance(rank)) moved = true;
      }
    }
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      if (!AtEnd(rank)) return Circle(rank);
    }
    return "";
  }

 private:
  bool AtEnd(int rank) const { return next_[rank] == schedule_.ranks[rank].size(); }
  const ScheduleItem& Current(int rank) const { return schedule_.ranks[rank][next_[rank]]; }
  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * schedule_.num_microbatches + microbatch;
  }

  // The other end of a transfer.
  Wait PeerOf(const PipelineAction& action) const {
    const auto peer = [&](int stage, Kind kind) {
      return Wait{schedule_.stage_rank[stage], {kind, stage, action.microbatch}};
    };
    switch (action.kind) {
      case Kind::kSendForward:
        return peer(action.stage + 1, Kind::kRecvForward);
      case Kind::kRecvForward:
        return peer(action.stage - 1, Kind::kSendForward);
      case Kind::kSendBackward:
        return peer(action.stage - 1, Kind::kRecvBackward);
      default:
        return peer(action.stage + 1, Kind::kSendBackward);
    }
  }

  // What the rank's current item waits for; nothing if it can go on.
  std::optional<Wait> WaitOf(int rank) const {
    for (const PipelineAction& action : Current(rank).actions) {
      if (IsTransfer(action.kind)) {
        const Wait peer = PeerOf(action);
        if (AtEnd(peer.rank) || !(Current(peer.rank) == ScheduleItem(peer.action))) return peer;
      }
      if (lowered_ || !IsCompute(action.kind) || action.kind == Kind::kWeightGradient) continue;
      const bool forward = action.kind == Kind::kForward;
      const int stage = forward ? action.stage - 1 : action.stage + 1;
      if (stage < 0 || stage >= schedule_.num_stages()) continue;
      if ((forward ? forward_ : gradient_)[At(stage, action.microbatch)]) continue;
      return Wait{schedule_.stage_rank[stage],
                  {forward ? Kind::kForward : Kind::kInputGradient, stage, action.microbatch}};
    }
    return std::nullopt;
  }

  bool Advance(int rank) {
    if (WaitOf(rank)) return false;
    for (const PipelineAction& action : Current(rank).actions) {
      if (IsTransfer(action.kind)) ++next_[PeerOf(action).rank];
      if (action.kind == Kind::kForward) forward_[At(action.stage, action.microbatch)] = true;
      if (action.kind == Kind::kInputGradient || action.kind == Kind::kBackward) {
        gradient_[At(action.stage, action.microbatch)] = true;
      }
    }
    ++next_[rank];
    return true;
  }

  // Follows who waits for whom until a rank comes up again. A rank that has come to its end is waited for by
  // none, since no action is missing.
  std::string Circle(int rank) const {
    std::vector<int> seen(schedule_.num_ranks(), -1);
    std::vector<int> path;
    while (seen[rank] < 0) {
      seen[rank] = static_cast<int>(path.size());
      path.push_back(rank);
      const std::optional<Wait> wait = WaitOf(rank);
      WEFT_CHECK(wait.has_value() && !AtEnd(wait->rank), "rank ", rank, " waits for nothing");
      rank = wait->rank;
    }
    std::string text = "deadlock: ";
    for (size_t i = seen[rank]; i < path.size(); ++i) {
      const std::optional<Wait> wait = WaitOf(path[i]);
      absl::StrAppend(&text, static_cast<int>(i) > seen[rank] ? "; " : "", "rank ", path[i], " waits in ",
                      Current(path[i]).ToString(), " (action ", next_[path[i]], ") for ", Named(*wait),
                      " of rank ", wait->rank);
    }
    return text;
  }

  // As the list names it: the gradient may be made by B.
  std::string Named(const Wait& wait) const {
    if (wait.action.kind != Kind::kInputGradient) return wait.action.ToString();
    const PipelineAction whole = {Kind::kBackward, wait.action.stage, wait.action.microbatch};
    for (const ScheduleItem& item : schedule_.ranks[wait.rank]) {
      for (const PipelineAction& action : item.actions) {
        if (action == whole) return whole.ToString();
      }
    }
    return wait.action.ToString();
  }

  const PipelineSchedule& schedule_;
  std::vector<size_t> next_;
  std::vector<bool> forward_;   // by stage and microbatch: F has run
  std::vector<bool> gradient_;  // I or B has run
  const bool lowered_;
};

}  // namespace

std::string DeadlockOf(const PipelineSchedule& schedule) { return Ranks(schedule).Deadlock(); }

}  // namespace weft
