#include "parallel/pipeline/run_order.h"

namespace weft {
namespace {

using Kind = ActionKind;

// Whether an item is the send of what an action makes.
bool SendsWhatMakes(const ScheduleItem& item, const PipelineAction& action) {
  const Kind sends = action.kind == Kind::kForward ? Kind::kSendForward : Kind::kSendBackward;
  return !item.overlapped() && item.actions[0] == PipelineAction{sends, action.stage, action.microbatch};
}

}  // namespace

std::vector<PipelineAction> RunOrder(absl::Span<const ScheduleItem> list) {
  std::vector<PipelineAction> order;
  order.reserve(list.size());
  for (size_t i = 0; i < list.size();) {
    const ScheduleItem& item = list[i++];
    for (const PipelineAction& action : item.actions) {
      order.push_back(action);
      while (item.overlapped() && i < list.size() && SendsWhatMakes(list[i], action)) {
        order.push_back(list[i++].actions[0]);
      }
    }
  }
  return order;
}

}  // namespace weft
