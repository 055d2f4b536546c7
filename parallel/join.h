// Training where the ranks' data ends at different steps.

#ifndef WEFT_PARALLEL_JOIN_H_
#define WEFT_PARALLEL_JOIN_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "parallel/trainer.h"

namespace weft {

// Steps until every rank's data is exhausted, and returns how many steps had data somewhere. A rank that is exhausted
// goes on with a batch that counts nothing, so that it takes part in every collective, whatever the plan: it gathers
// and reduces under FullyShard as the others do. Losses are sums over the global count, so each update is that of the
// batches that there are.
//
//   Join(trainer, [&] { return NextBatch(&batch); },  // the program's own
//        [&](bool has_data) {
//          if (!has_data) batch = nothing;  // of the same shape; no target counts
//          trainer.Step(/*microbatches=*/1, [&](int) { return CountTargets(batch.targets); },
//                       [&model, batch](int) { return model.Loss(batch.tokens, batch.targets); });
//        });
//
// `next` is this rank's: whether it has a batch for the coming step. It is not asked again after it has said no.
// `step` makes one step of `trainer` with microbatches and counts; without data, their counts are 0 here. Ranks that
// hold the same rows (those along a tensor-parallel axis) are exhausted together.
//
// That nothing was counted anywhere is learnt from the record, one step late, and that no rank had data then is asked: the
// last two steps have no data, and change nothing. They are steps otherwise: the schedule and Trainer::step go by them. A
// step of batches none of which counts anything changes nothing either, and is no end.
//
// Cost:   nothing besides the steps, and one all-reduce of 8 bytes behind the record of a step that counted nothing.
// Errors: InvalidArgument if `step` makes no step of the trainer, or not one; as of what it calls.
int64_t Join(Trainer& trainer, absl::FunctionRef<bool()> next, absl::FunctionRef<void(bool has_data)> step);

}  // namespace weft

#endif  // WEFT_PARALLEL_JOIN_H_
