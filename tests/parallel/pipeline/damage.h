// Schedules that are no longer what a generator made.

#ifndef WEFT_TESTS_PARALLEL_PIPELINE_DAMAGE_H_
#define WEFT_TESTS_PARALLEL_PIPELINE_DAMAGE_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "parallel/pipeline/schedule.h"

namespace weft {

class Damage {
 public:
  Damage(PipelineSchedule schedule, std::mt19937_64& random)
      : schedule_(std::move(schedule)), random_(random) {}

  // Drops, swaps, repeats or moves an action, within its list or to another; or gives it another microbatch
  // or kind.
  void Once() {
    const int rank = Any(schedule_.num_ranks());
    std::vector<ScheduleItem>& items = schedule_.ranks[rank];
    if (items.size() < 2) return;
    const size_t at = Any(items.size());
    const ScheduleItem item = items[at];
    switch (Any(8)) {
      case 0:
        items.erase(items.begin() + at);
        return;
      case 1:  // neighbours: often legal
        std::swap(items[at], items[at + 1 < items.size() ? at + 1 : at - 1]);
        return;
      case 2:
        std::swap(items[at], items[Any(items.size())]);
        return;
      case 3:
        Insert(schedule_.ranks[Any(schedule_.num_ranks())], item);
        return;
      case 4:
        items.erase(items.begin() + at);
        Insert(Any(3) == 0 ? schedule_.ranks[Any(schedule_.num_ranks())] : items, item);
        return;
      case 5:
        return Change(items[at], /*kind=*/false);
      case 6:
        return Change(items[at], /*kind=*/true);
      default: {
        ScheduleItem changed = item;
        Change(changed, /*kind=*/true);
        items.insert(items.begin() + at + 1, changed);
      }
    }
  }

  const PipelineSchedule& schedule() const { return schedule_; }

 private:
  int Any(size_t count) { return static_cast<int>(random_() % count); }
  // Another microbatch, or another kind of computing.
  void Change(ScheduleItem& item, bool kind) {
    PipelineAction& action = item.actions[Any(item.actions.size())];
    if (!IsCompute(action.kind)) return;
    if (kind) {
      action.kind = static_cast<ActionKind>(Any(static_cast<int>(ActionKind::kBackward) + 1));
    } else {
      action.microbatch = Any(schedule_.num_microbatches);
    }
  }
  void Insert(std::vector<ScheduleItem>& items, const ScheduleItem& item) {
    items.insert(items.begin() + Any(items.size() + 1), item);
  }

  PipelineSchedule schedule_;
  std::mt19937_64& random_;
};

}  // namespace weft

#endif  // WEFT_TESTS_PARALLEL_PIPELINE_DAMAGE_H_
