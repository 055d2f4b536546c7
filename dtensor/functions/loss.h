#ifndef WEFT_DTENSOR_FUNCTIONS_LOSS_H_
#define WEFT_DTENSOR_FUNCTIONS_LOSS_H_

#include <cstdint>

#include "dtensor/dtensor.h"

// Losses: what training makes small.
namespace weft {

// The summed loss and the number of counted positions, both scalars: divide the one by the (global) other, so
// that batch shards and microbatches weigh by tokens. `count` carries no gradient.
struct LossSum {
  DTensor sum;
  DTensor count;

  // sum / count: a scalar, Partial where the sum is.
  // Cost:   an all-reduce of the count over the axes that split the batch.
  DTensor Mean() const;
  // sum / total: where `total` is the count of all microbatches of a step, so that the gradients of each,
  // added up, are those of the mean over all. Of halves it is in f32.
  // Shape:  total: a scalar, replicated; of any dtype.
  // Cost:   no communication.
  DTensor Over(const DTensor& total) const;
};

// How many targets count: a scalar f64, Partial where the targets are split. Reads no logits, so that it may
// come before forward.
// Cost:   no communication: it is Partial.
// Errors: InvalidArgument for an ignore_index that the targets' dtype does not hold.
DTensor CountTargets(const DTensor& targets, int64_t ignore_index = -100);

struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};

// logits [..., v] floating, targets [...] i32 or i64 -> scalars, f64 for f64, else f32.
//
// Layout: any dim may be split; logits split over v are not gathered. Sums are Partial where positions are split.
// Cost:   where v is split, an all-reduce of three numbers per position.
// Errors: InvalidArgument for shapes that do not fit, or that names the first target outside [0, v) that is not ignore_index.
// Source: for a split v, Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3.
LossSum CrossEntropy(const DTensor& logits, const DTensor& targets, const CrossEntropyOptions& options = {});

// Squared differences of two tensors of one shape; every element counts. Halves are compared and summed in
// f32.
// Layout: every dim may be split; the sum is Partial then.
// Cost:   no communication where both lie alike and are not Partial.
// Errors: InvalidArgument if the shapes differ, where PyTorch would broadcast and warn, and unless both are of one floating dtype.
LossSum MseLoss(const DTensor& prediction, const DTensor& target);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_LOSS_H_
