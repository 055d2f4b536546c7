#include "parallel/pipeline/lowering.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "parallel/pipeline/action_order.h"
#include "parallel/pipeline/deadlock.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Kind = ActionKind;
using Items = std::vector<ScheduleItem>;

// The stages that an item computes with. A W counts if the caller says so: it reads x and dY, and no parameters.
std::vector<int> StagesOf(const ScheduleItem& item, bool counts_weights) {
  std::vector<int> stages;
  for (const PipelineAction& action : item.actions) {
    const bool counts = IsCompute(action.kind) && (counts_weights || action.kind != Kind::kWeightGradient);
    if (counts) stages.push_back(action.stage);
  }
  return stages;
}

// The next stages, as many as may be whole, that compute from items[begin] on, whose own stages fit, in order of their turn:
// all of an item's, or none of its and of those behind it. `left`: how many items are left per stage, so that the search ends
// where there are no more.
std::vector<int> NextStages(const Items& items, size_t begin, const LoweringOptions& options,
                            const std::map<int, int>& left) {
  const size_t count = std::min(static_cast<size_t>(options.whole_stages), left.size());
  std::vector<int> next;
  for (size_t i = begin; i < items.size() && next.size() < count; ++i) {
    const size_t before = next.size();
    for (int stage : StagesOf(items[i], options.whole_for_weights)) {
      if (std::find(next.begin(), next.end(), stage) == next.end()) next.push_back(stage);
    }
    if (next.size() <= static_cast<size_t>(options.whole_stages)) continue;
    next.resize(before);
    break;
  }
  return next;
}

Items WithUnshards(const Items& items, const LoweringOptions& options) {
  const int whole_stages = options.whole_stages;
  Items result;
  std::vector<int> whole;
  std::map<int, int> left;
  for (const ScheduleItem& item : items) {
    for (int stage : StagesOf(item, options.whole_for_weights)) ++left[stage];
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const std::vector<int> stages = StagesOf(items[i], options.whole_for_weights);
    if (!stages.empty()) {
      const size_t needed = std::set<int>(stages.begin(), stages.end()).size();
      WEFT_REQUIRE(needed <= static_cast<size_t>(whole_stages), "whole_stages = ", whole_stages, ", but ",
                   items[i].ToString(), " computes with ", needed, " stages");
      const std::vector<int> next = NextStages(items, i, options, left);
      const auto goes = [&](int stage) { return std::find(next.begin(), next.end(), stage) == next.end(); };
      for (int stage : whole) {
        if (goes(stage)) result.push_back(PipelineAction{Kind::kReshard, stage});
      }
      whole.erase(std::remove_if(whole.begin(), whole.end(), goes), whole.end());
      for (int stage : next) {
        if (std::find(whole.begin(), whole.end(), stage) != whole.end()) continue;
        whole.push_back(stage);
        result.push_back(PipelineAction{Kind::kUnshard, stage});
      }
    }
    result.push_back(items[i]);
    for (int stage : stages) {
      if (--left[stage] > 0) continue;
      left.erase(stage);
      if (options.whole_for_weights) continue;
      std::erase(whole, stage);
      result.push_back(PipelineAction{Kind::kReshard, stage});
    }
  }
  for (int stage : whole) result.push_back(PipelineAction{Kind::kReshard, stage});
  return result;
}

Items WithReductions(const Items& items, int num_microbatches, int microbatches_per_update) {
  Items result;
  const int group = microbatches_per_update > 0 ? microbatches_per_update : num_microbatches;
  std::map<int, int> gradients;
  for (const ScheduleItem& item : items) {
    result.push_back(item);
    for (const PipelineAction& action : item.actions) {
      if (action.kind != Kind::kWeightGradient && action.kind != Kind::kBackward) continue;
      const int count = ++gradients[action.stage];
      if (count % group == 0 || count == num_microbatches) {
        result.push_back(PipelineAction{Kind::kReduceGrad, action.stage});
      }
    }
  }
  return result;
}

// Writes all lists side by side.
class TransferWriter {
 public:
  explicit TransferWriter(const PipelineSchedule& schedule)
      : schedule_(schedule),
        input_(static_cast<size_t>(schedule.num_stages()) * schedule.num_microbatches, false),
        gradient_(input_.size(), false),
        lists_(schedule.num_ranks()) {}

  std::vector<Items> Write() {
    std::vector<size_t> next(schedule_.num_ranks(), 0);
    bool moved = true;
    while (moved) {
      moved = false;
      // One item per rank and round, so that lists grow as the ranks would run them.
      for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
        if (next[rank] == schedule_.ranks[rank].size()) continue;
        const ScheduleItem& item = schedule_.ranks[rank][next[rank]];
        if (!CanRun(item)) continue;
        lists_[rank].push_back(item);
        for (const PipelineAction& action : item.actions) HandOn(action);
        ++next[rank];
        moved = true;
      }
    }
    return std::move(lists_);
  }

 private:
  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * schedule_.num_microbatches + microbatch;
  }

  // Whether the lists so far bring the item's rank what it needs.
  bool CanRun(const ScheduleItem& item) const {
    for (const PipelineAction& action : item.actions) {
      if (action.kind == Kind::kForward && action.stage > 0 && !input_[At(action.stage, action.microbatch)])
        return false;
      if ((action.kind == Kind::kInputGradient || action.kind == Kind::kBackward) &&
          action.stage + 1 < schedule_.num_stages() && !gradient_[At(action.stage, action.microbatch)]) {
        return false;
      }
    }
    return true;
  }

  // What an action makes for another stage: there at once on its own rank, sent to others.
  void HandOn(const PipelineAction& action) {
    const bool forward = action.kind == Kind::kForward;
    if (!forward && action.kind != Kind::kInputGradient && action.kind != Kind::kBackward) return;
    const int to = forward ? action.stage + 1 : action.stage - 1;
    if (to < 0 || to >= schedule_.num_stages()) return;
    (forward ? input_ : gradient_)[At(to, action.microbatch)] = true;
    const int from_rank = schedule_.stage_rank[action.stage];
    const int to_rank = schedule_.stage_rank[to];
    if (from_rank == to_rank) return;
    lists_[from_rank].push_back(
        PipelineAction{forward ? Kind::kSendForward : Kind::kSendBackward, action.stage, action.microbatch});
    lists_[to_rank].push_back(
        PipelineAction{forward ? Kind::kRecvForward : Kind::kRecvBackward, to, action.microbatch});
  }

  const PipelineSchedule& schedule_;
  std::vector<bool> input_;     // by stage and microbatch: what F reads is on its rank
  std::vector<bool> gradient_;  // what I or B reads is
  std::vector<Items> lists_;
};

void CheckOptions(const LoweringOptions& options) {
  WEFT_REQUIRE(options.whole_stages >= 0, "whole_stages = ", options.whole_stages, ": expected 0 or more");
}

}  // namespace

PipelineSchedule LowerSchedule(const PipelineSchedule& schedule, const LoweringOptions& options) {
  CheckOptions(options);
  WEFT_REQUIRE(!schedule.lowered(), "schedule ", schedule.name, " has sends and receives already");
  std::string defect = ActionOrderDefect(schedule);
  if (defect.empty()) defect = DeadlockOf(schedule);
  WEFT_REQUIRE(defect.empty(), "schedule ", schedule.name, ": ", defect);
  const bool gathers = options.whole_stages > 0 && !schedule.Contains(Kind::kUnshard);
  const bool reduces = options.reduce_gradients && !schedule.Contains(Kind::kReduceGrad);
  PipelineSchedule lowered = schedule;
  for (Items& items : lowered.ranks) {
    if (gathers) items = WithUnshards(items, options);
    if (reduces) {
      items = WithReductions(items, schedule.num_microbatches, schedule.microbatches_per_update);
    }
  }
  lowered.ranks = TransferWriter(lowered).Write();
  return lowered;
}

PipelineSchedule LowerForward(const std::vector<int>& stage_rank, int num_microbatches,
                              const LoweringOptions& options) {
  CheckOptions(options);
  PipelineSchedule schedule = {
      .name = "forward", .num_microbatches = num_microbatches, .stage_rank = stage_rank};
  schedule.ranks.resize(*std::max_element(stage_rank.begin(), stage_rank.end()) + 1);
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    for (int microbatch = 0; microbatch < num_microbatches; ++microbatch) {
      schedule.ranks[stage_rank[stage]].push_back(PipelineAction{Kind::kForward, stage, microbatch});
    }
  }
  for (Items& items : schedule.ranks) {
    if (options.whole_stages > 0) items = WithUnshards(items, options);
  }
  schedule.ranks = TransferWriter(schedule).Write();
  return schedule;
}

}  // namespace weft
