// Interleaved 1F1B: several chunks per rank, in turns of a group of microbatches.

#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/generators/warmed_list.h"

namespace weft {
namespace {

// Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
//         Megatron-LM", 2021, with
// PyTorch's groups.
PipelineSchedule Generate(const ScheduleSize& size) {
  PipelineSchedule schedule{.stage_rank = LoopPlacement(size.ranks, size.chunks)};
  const int group = InterleavedGroup(size);
  for (int rank = 0; rank < size.ranks; ++rank) {
    schedule.ranks.push_back(WarmedList(
        size,
        {.rank = rank, .warm_up = (size.chunks - 1) * group + 2 * (size.ranks - 1 - rank), .group = group}));
  }
  return schedule;
}

const RegisterSchedule kRegister({
    .name = "interleaved",
    .summary =
        "1f1b of several chunks per rank: a bubble divided by the chunks, for more transfers and activations",
    .chunks = 2,
    .any_chunks = true,
    .rule = kInterleavedRule,
    .accepts = InterleavedAccepts,
    .generate = Generate,
});

}  // namespace
}  // namespace weft
