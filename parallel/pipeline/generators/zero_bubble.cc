// ZB-H1, its interleaved form, and ZB-H2: weight gradients fill what 1F1B idles.

#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/generators/warmed_list.h"

namespace weft {
namespace {

// Source: Qi et al., "Zero Bubble Pipeline Parallelism", 2023, with PyTorch's groups. ZB-H1 is the one of one
//         chunk.
PipelineSchedule Interleaved(const ScheduleSize& size) {
  PipelineSchedule schedule{.stage_rank = LoopPlacement(size.ranks, size.chunks)};
  const int group = InterleavedGroup(size);
  for (int rank = 0; rank < size.ranks; ++rank) {
    schedule.ranks.push_back(WarmedList(size, {.rank = rank,
                                               .warm_up = (size.chunks - 1) * group + (size.ranks - 1 - rank),
                                               .group = group,
                                               .weights_held = rank}));
  }
  return schedule;
}

// Source: as above. Twice the forwards to warm up, twice the W held back: no rank idles between its first F
//         and its last W
// where F, I and W take the same time.
PipelineSchedule Deep(const ScheduleSize& size) {
  PipelineSchedule schedule{.stage_rank = LoopPlacement(size.ranks, 1)};
  for (int rank = 0; rank < size.ranks; ++rank) {
    schedule.ranks.push_back(WarmedList(size, {.rank = rank,
                                               .warm_up = 2 * (size.ranks - 1 - rank),
                                               .group = size.microbatches,
                                               .weights_held = 2 * rank}));
  }
  return schedule;
}

const RegisterSchedule kRegisterH1({
    .name = "zb_h1",
    .summary =
        "1f1b with W apart from I: a third of its bubble, the activations of 1f1b's first rank on every rank",
    .rule = kInterleavedRule,
    .accepts = InterleavedAccepts,
    .generate = Interleaved,
});

const RegisterSchedule kRegisterInterleaved({
    .name = "interleaved_zb",
    .summary = "zb_h1 of several chunks per rank",
    .chunks = 2,
    .any_chunks = true,
    .rule = kInterleavedRule,
    .accepts = InterleavedAccepts,
    .generate = Interleaved,
});

const RegisterSchedule kRegisterH2({
    .name = "zb_h2",
    .summary =
        "zb_h1 with twice the activations: ranks idle only before their first and behind their last action",
    .generate = Deep,
});

}  // namespace
}  // namespace weft
