// LoopedBFS: all microbatches of a chunk before the next chunk.

#include <vector>

#include "parallel/pipeline/generator.h"

namespace weft {
namespace {

// Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2022. Backwards descend, as PyTorch has them.
PipelineSchedule Generate(const ScheduleSize& size) {
  PipelineSchedule schedule{.stage_rank = LoopPlacement(size.ranks, size.chunks)};
  for (int rank = 0; rank < size.ranks; ++rank) {
    std::vector<ScheduleItem>& items = schedule.ranks.emplace_back();
    for (int chunk = 0; chunk < size.chunks; ++chunk) {
      for (int i = 0; i < size.microbatches; ++i) {
        items.push_back(PipelineAction{ActionKind::kForward, chunk * size.ranks + rank, i});
      }
    }
    for (int chunk = size.chunks - 1; chunk >= 0; --chunk) {
      for (int i = size.microbatches - 1; i >= 0; --i) {
        items.push_back(PipelineAction{ActionKind::kBackward, chunk * size.ranks + rank, i});
      }
    }
  }
  return schedule;
}

const RegisterSchedule kRegister({
    .name = "looped_bfs",
    .summary = "several chunks per rank, each takes all microbatches in a row",
    .chunks = 2,
    .any_chunks = true,
    .generate = Generate,
});

}  // namespace
}  // namespace weft
