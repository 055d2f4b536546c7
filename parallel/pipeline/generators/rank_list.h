// The list of one rank while a generator writes it: numbers microbatches by itself.

#ifndef WEFT_PARALLEL_PIPELINE_GENERATORS_RANK_LIST_H_
#define WEFT_PARALLEL_PIPELINE_GENERATORS_RANK_LIST_H_

#include <map>
#include <utility>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace weft {

// Appends actions; each stage takes its microbatches in order, in each kind. B counts as I and as W.
class RankList {
 public:
  // How many of the kind the stage has had.
  int Count(ActionKind kind, int stage) const {
    const auto found = counts_.find({kind, stage});
    return found == counts_.end() ? 0 : found->second;
  }

  // The kind's next microbatch of the stage.
  void Add(ActionKind kind, int stage) { items_.push_back(Next(kind, stage)); }

  // F of one stage and B of another, overlapped.
  void AddPair(int forward_stage, int backward_stage) {
    const PipelineAction forward = Next(ActionKind::kForward, forward_stage);
    items_.emplace_back(forward, Next(ActionKind::kBackward, backward_stage));
  }

  // Adds an update of the stage.
  void AddUpdate(int stage) { items_.push_back(PipelineAction{ActionKind::kOpt, stage}); }

  std::vector<ScheduleItem> Take() && { return std::move(items_); }

 private:
  PipelineAction Next(ActionKind kind, int stage) {
    if (kind != ActionKind::kBackward) return {kind, stage, counts_[{kind, stage}]++};
    ++counts_[{ActionKind::kWeightGradient, stage}];
    return {kind, stage, counts_[{ActionKind::kInputGradient, stage}]++};
  }

  std::map<std::pair<ActionKind, int>, int> counts_;
  std::vector<ScheduleItem> items_;
};

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_GENERATORS_RANK_LIST_H_
