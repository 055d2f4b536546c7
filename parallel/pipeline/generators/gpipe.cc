// GPipe: all forwards, then all backwards.

#include <utility>

#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/generators/rank_list.h"

namespace weft {
namespace {

// Source: Huang et al., "GPipe", 2019; backwards ascend, as PyTorch has them (descending, the bubble is the
//         same).
PipelineSchedule Generate(const ScheduleSize& size) {
  PipelineSchedule schedule{.stage_rank = LoopPlacement(size.ranks, 1)};
  for (int rank = 0; rank < size.ranks; ++rank) {
    RankList list;
    for (int i = 0; i < size.microbatches; ++i) list.Add(ActionKind::kForward, rank);
    for (int i = 0; i < size.microbatches; ++i) list.Add(ActionKind::kBackward, rank);
    schedule.ranks.push_back(std::move(list).Take());
  }
  return schedule;
}

const RegisterSchedule kRegister({
    .name = "gpipe",
    .summary = "all forwards, then all backwards; holds every microbatch",
    .generate = Generate,
});

}  // namespace
}  // namespace weft
