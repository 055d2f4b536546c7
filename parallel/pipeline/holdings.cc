#include "parallel/pipeline/holdings.h"

#include <algorithm>
#include <map>
#include <set>

namespace weft {
namespace {

using Kind = ActionKind;

// The versions of one stage's weights as its list goes on; a version is the number of updates that made it.
class StageVersions {
 public:
  void Run(const PipelineSchedule& schedule, const PipelineAction& action) {
    const int group = std::max(1, schedule.microbatches_per_update);
    switch (action.kind) {
      case Kind::kForward:
        read_[action.microbatch] = schedule.versions == WeightVersions::kNewest
                                       ? updates_
                                       : std::max(0, action.microbatch / group - 1);
        begun_ = std::max(begun_, action.microbatch + 1);
        break;
      case Kind::kWeightGradient:
      case Kind::kBackward:
        read_.erase(action.microbatch);
        break;
      case Kind::kOpt:
        ++updates_;
        break;
      default:
        return;
    }
    std::set<int> held = {updates_};
    for (const auto& [microbatch, version] : read_) held.insert(version);
    // What the next forward will read has to be kept for it.
    if (schedule.versions == WeightVersions::kPrevious && begun_ < schedule.num_microbatches) {
      held.insert(std::max(0, begun_ / group - 1));
    }
    most_ = std::max(most_, static_cast<int>(held.size()));
  }

  int most() const { return most_; }

 private:
  int updates_ = 0;
  int begun_ = 0;            // microbatches whose F has begun
  std::map<int, int> read_;  // by microbatch in flight
  int most_ = 1;
};

}  // namespace

ScheduleHoldings HoldingsOf(const PipelineSchedule& schedule) {
  ScheduleHoldings holdings;
  std::vector<StageVersions> versions(schedule.num_stages());
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    int until_w = 0;
    int until_i = 0;
    int peak_w = 0;
    int peak_i = 0;
    for (const ScheduleItem& item : schedule.ranks[rank]) {
      for (const PipelineAction& action : item.actions) {
        if (action.kind == Kind::kForward) ++until_w, ++until_i;
        if (schedule.versions != WeightVersions::kOne) versions[action.stage].Run(schedule, action);
      }
      peak_w = std::max(peak_w, until_w);
      peak_i = std::max(peak_i, until_i);
      for (const PipelineAction& action : item.actions) {
        if (action.kind == Kind::kBackward || action.kind == Kind::kWeightGradient) --until_w;
        if (action.kind == Kind::kBackward || action.kind == Kind::kInputGradient) --until_i;
      }
    }
    int most = 1;
    for (int stage : schedule.StagesOf(rank)) most = std::max(most, versions[stage].most());
    holdings.peak_w.push_back(peak_w);
    holdings.peak_i.push_back(peak_i);
    holdings.versions.push_back(most);
  }
  return holdings;
}

}  // namespace weft
