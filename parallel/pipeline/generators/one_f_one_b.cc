// 1F1B and its asynchronous kin, PipeDream and PipeDream-2BW.

#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/generators/warmed_list.h"

namespace weft {
namespace {

PipelineSchedule Lists(const ScheduleSize& size, int microbatches_per_update) {
  PipelineSchedule schedule{.stage_rank = LoopPlacement(size.ranks, 1)};
  for (int rank = 0; rank < size.ranks; ++rank) {
    schedule.ranks.push_back(WarmedList(size, {.rank = rank,
                                               .warm_up = size.ranks - 1 - rank,
                                               .group = size.microbatches,
                                               .microbatches_per_update = microbatches_per_update}));
  }
  return schedule;
}

const RegisterSchedule kRegister({
    .name = "1f1b",
    .summary = "one forward and one backward in turn: gpipe's bubble, but rank r holds at most ranks - r "
               "microbatches",
    .generate = [](const ScheduleSize& size) { return Lists(size, /*microbatches_per_update=*/0); },
});

// Source: Narayanan et al., "PipeDream", 2019: each stage updates after each microbatch, and a microbatch's
//         backward reads
// the weights that its forward has read.
const RegisterSchedule kRegisterPipeDream({
    .name = "pipedream",
    .summary =
        "1f1b that updates after each microbatch, with as many weight versions as microbatches in flight",
    .updates_within_step = true,
    .generate =
        [](const ScheduleSize& size) {
          PipelineSchedule schedule = Lists(size, /*microbatches_per_update=*/1);
          schedule.versions = WeightVersions::kNewest;
          schedule.microbatches_per_update = 1;
          return schedule;
        },
});

// Source: Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021: gradients of as many
//         microbatches as
// there are ranks make an update, and two versions of the weights are enough.
const RegisterSchedule kRegisterDoubleBuffered({
    .name = "pipedream_2bw",
    .summary = "1f1b that updates once per as many microbatches as ranks, with two weight versions",
    .updates_within_step = true,
    .rule = "microbatches in a multiple of the ranks",
    .accepts = [](const ScheduleSize& size) { return size.microbatches % size.ranks == 0; },
    .generate =
        [](const ScheduleSize& size) {
          PipelineSchedule schedule = Lists(size, size.ranks);
          schedule.versions = WeightVersions::kPrevious;
          schedule.microbatches_per_update = size.ranks;
          return schedule;
        },
});

}  // namespace
}  // namespace weft
