// ZBV: two chunks per rank that lie as a V, so that the rank of the first stage also has the last.

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/generators/rank_list.h"

namespace weft {
namespace {

constexpr ActionKind kF = ActionKind::kForward;
constexpr ActionKind kI = ActionKind::kInputGradient;
constexpr ActionKind kW = ActionKind::kWeightGradient;

// `count` microbatches, at least 2 * ranks - 1; a is the stage on the way down, z the one on the way up.
std::vector<ScheduleItem> List(int ranks, int rank, int count) {
  const int a = rank;
  const int z = 2 * ranks - 1 - rank;
  RankList list;
  const auto add = [&](int stage, std::initializer_list<ActionKind> kinds) {
    for (ActionKind kind : kinds) list.Add(kind, stage);
  };
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) add(a, {kF});
  for (int i = 0; i < rank; ++i) add(z, {kF}), add(a, {kF});
  for (int i = 0; i < ranks - rank; ++i) add(z, {kF, kI, kW});
  while (list.Count(kF, a) < count || list.Count(kF, z) < count) {
    if (list.Count(kF, a) < count) add(a, {kF});
    add(a, {kI, kW});
    add(z, {kF, kI, kW});
  }
  for (int i = 0; i < rank; ++i) add(a, {kI}), add(z, {kI});
  for (int i = 0; i < ranks - rank; ++i) add(a, {kI, kW});
  while (list.Count(kW, z) < list.Count(kI, z)) add(z, {kW});
  while (list.Count(kW, a) < list.Count(kI, a)) add(a, {kW});
  return std::move(list).Take();
}

// Source: Qi et al., "Zero Bubble Pipeline Parallelism", 2023, section 6, as PyTorch writes it: for fewer
//         microbatches than
// fill the pipeline the list of as many as do, without those that there are not.
PipelineSchedule Generate(const ScheduleSize& size) {
  PipelineSchedule schedule{.stage_rank = VPlacement(size.ranks)};
  for (int rank = 0; rank < size.ranks; ++rank) {
    std::vector<ScheduleItem> items = List(size.ranks, rank, std::max(2 * size.ranks - 1, size.microbatches));
    items.erase(std::remove_if(items.begin(), items.end(),
                               [&](const ScheduleItem& item) {
                                 return item.actions[0].microbatch >= size.microbatches;
                               }),
                items.end());
    schedule.ranks.push_back(std::move(items));
  }
  return schedule;
}

const RegisterSchedule kRegister({
    .name = "zbv",
    .summary =
        "two chunks per rank that lie as a V: no rank idles in mid-step where F, I and W take the same time",
    .chunks = 2,
    .generate = Generate,
});

}  // namespace
}  // namespace weft
