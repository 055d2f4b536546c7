#include "parallel/pipeline/saved_bytes.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

using Kind = ActionKind;

// What an action adds first, and then takes away.
struct Change {
  int64_t more = 0;
  int64_t less = 0;
};

// Where a stage meets those of other ranks.
struct Borders {
  bool receives = false;  // the stage before is elsewhere
  bool sends = false;     // the next stage is
};

Borders BordersOf(const PipelineSchedule& schedule, int stage) {
  const std::vector<int>& rank = schedule.stage_rank;
  return {.receives = stage > 0 && rank[stage - 1] != rank[stage],
          .sends = stage + 1 < schedule.num_stages() && rank[stage + 1] != rank[stage]};
}

// `is_lowered`: what crosses a border does so by an action of its own.
Change ChangeOf(const PipelineSchedule& schedule, bool is_lowered, const PipelineAction& action,
                const BytesOfStage& bytes) {
  if (!HasMicrobatch(action.kind)) return {};
  const Borders borders = BordersOf(schedule, action.stage);
  const StageBytes own = bytes(action.stage, action.microbatch);
  const bool is_last = action.stage + 1 == schedule.num_stages();
  const int64_t outputs = is_last ? 0 : bytes(action.stage + 1, action.microbatch).inputs;
  const int64_t output_gradients = borders.sends ? own.output_gradients : 0;
  switch (action.kind) {
    case Kind::kRecvForward:
      return {.more = own.inputs};
    case Kind::kForward:
      return {.more = own.saved + own.kept + outputs + (borders.receives && !is_lowered ? own.inputs : 0),
              .less = borders.sends && !is_lowered ? outputs : 0};
    case Kind::kSendForward:
      return {.less = outputs};
    case Kind::kRecvBackward:
      return {.more = output_gradients};
    case Kind::kInputGradient:
      return {.more = own.deferred + (is_lowered ? 0 : output_gradients), .less = own.saved};
    case Kind::kWeightGradient:
      return {.less = own.inputs + own.kept + own.deferred + output_gradients};
    case Kind::kBackward:
      return {.more = is_lowered ? 0 : output_gradients,
              .less = own.inputs + own.saved + own.kept + output_gradients};
    default:
      return {};
  }
}

}  // namespace

SavedBytes SavedBytesOf(const PipelineSchedule& schedule, const BytesOfStage& bytes) {
  SavedBytes result;
  const bool is_lowered = schedule.lowered();
  for (const std::vector<ScheduleItem>& list : schedule.ranks) {
    std::vector<int64_t> after;
    int64_t now = 0, peak = 0;
    for (const ScheduleItem& item : list) {
      for (const PipelineAction& action : item.actions) {
        const Change change = ChangeOf(schedule, is_lowered, action, bytes);
        peak = std::max(peak, now + change.more);
        now += change.more - change.less;
        after.push_back(now);
      }
    }
    result.after.push_back(std::move(after));
    result.peak.push_back(peak);
  }
  return result;
}

}  // namespace weft
