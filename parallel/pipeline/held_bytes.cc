#include "parallel/pipeline/held_bytes.h"

#include <algorithm>
#include <utility>

#include "parallel/pipeline/run_order.h"

namespace weft {
namespace {

using Kind = ActionKind;

// What an action changes, in turn.
struct Change {
  int64_t arrives = 0;
  int64_t by_action = 0;
  int64_t leaves = 0;
};

class Changes {
 public:
  Changes(const PipelineSchedule& schedule, const BytesOfStage& bytes)
      : schedule_(schedule), bytes_(bytes), lowered_(schedule.lowered()) {}

  Change Of(const PipelineAction& action) const {
    if (!HasMicrobatch(action.kind)) return {};
    const auto [kind, stage, microbatch] = action;
    const StageBytes own = bytes_(stage, microbatch);
    const int64_t made_forward = stage + 1 < schedule_.num_stages() ? bytes_(stage + 1, microbatch).input : 0;
    const int64_t made_backward = stage > 0 ? bytes_(stage - 1, microbatch).gradient : 0;
    // What crosses to another rank without an action of its own.
    const bool crosses_before = !lowered_ && Crosses(stage, stage - 1);
    const bool crosses_behind = !lowered_ && Crosses(stage, stage + 1);
    switch (kind) {
      case Kind::kRecvForward:
        return {.arrives = own.input};
      case Kind::kForward:
        return {.arrives = crosses_before ? own.input : 0,
                .by_action = own.saved + made_forward,
                .leaves = crosses_behind ? made_forward : 0};
      case Kind::kSendForward:
        return {.leaves = made_forward};
      case Kind::kRecvBackward:
        return {.arrives = own.gradient};
      case Kind::kInputGradient:
      case Kind::kBackward:
        return {.arrives = crosses_behind ? own.gradient : 0,
                .by_action = (kind == Kind::kInputGradient ? own.kept : 0) + made_backward - own.saved -
                             own.input - own.gradient,
                .leaves = crosses_before ? made_backward : 0};
      case Kind::kSendBackward:
        return {.leaves = made_backward};
      case Kind::kWeightGradient:
        return {.leaves = own.kept};
      default:
        return {};
    }
  }

 private:
  bool Crosses(int stage, int other) const {
    return other >= 0 && other < schedule_.num_stages() &&
           schedule_.stage_rank[stage] != schedule_.stage_rank[other];
  }

  const PipelineSchedule& schedule_;
  const BytesOfStage& bytes_;
  const bool lowered_;  // then transfers are actions
};

}  // namespace

HeldBytes HeldBytesOf(const PipelineSchedule& schedule, const BytesOfStage& bytes) {
  HeldBytes held;
  const Changes changes(schedule, bytes);
  for (const std::vector<ScheduleItem>& list : schedule.ranks) {
    std::vector<int64_t> after;
    int64_t now = 0;
    int64_t peak = 0;
    for (const PipelineAction& action : RunOrder(list)) {
      const Change change = changes.Of(action);
      now += change.arrives;
      peak = std::max(peak, now);
      now += change.by_action;
      peak = std::max(peak, now);
      now -= change.leaves;
      after.push_back(now);
    }
    held.after.push_back(std::move(after));
    held.peak.push_back(peak);
  }
  return held;
}

}  // namespace weft
