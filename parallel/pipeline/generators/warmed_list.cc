#include "parallel/pipeline/generators/warmed_list.h"

#include <algorithm>
#include <utility>

#include "parallel/pipeline/generators/rank_list.h"

namespace weft {
namespace {

int Rounds(const ScheduleSize& size) { return std::max(1, size.microbatches / size.ranks); }

}  // namespace

int InterleavedGroup(const ScheduleSize& size) { return size.microbatches / Rounds(size); }

bool InterleavedAccepts(const ScheduleSize& size) { return size.microbatches % Rounds(size) == 0; }

std::vector<ScheduleItem> WarmedList(const ScheduleSize& size, const WarmedListOptions& options) {
  const int total = size.microbatches * size.chunks;
  const auto stage = [&](int chunk) { return chunk * size.ranks + options.rank; };
  const auto forward = [&](int k) { return stage(k / options.group % size.chunks); };
  const auto backward = [&](int k) { return stage(size.chunks - 1 - k / options.group % size.chunks); };
  const bool splits = options.weights_held.has_value();
  RankList list;
  int forwards = 0;
  int weights = 0;
  while (forwards < std::min(options.warm_up, total)) list.Add(ActionKind::kForward, forward(forwards++));
  for (int k = 0; k < total; ++k) {
    if (forwards < total) list.Add(ActionKind::kForward, forward(forwards++));
    list.Add(splits ? ActionKind::kInputGradient : ActionKind::kBackward, backward(k));
    if (splits && k >= *options.weights_held) list.Add(ActionKind::kWeightGradient, backward(weights++));
    if (options.microbatches_per_update > 0 && (k + 1) % options.microbatches_per_update == 0) {
      list.AddUpdate(backward(k));
    }
  }
  while (splits && weights < total) list.Add(ActionKind::kWeightGradient, backward(weights++));
  return std::move(list).Take();
}

}  // namespace weft
