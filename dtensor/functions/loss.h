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
  // added up, are those of the mean over all.
  // Shape:  total: a scalar, replicated; of any dtype.
  DTensor Over(const DTensor& total) const;
};

// How many targets count: a scalar f64, Partial where the targets are split. Reads no logits, so that it may
// come before forward.
DTensor CountTargets(const DTensor& targets, int64_t ignore_index = -100);

struct CrossEntropyOptions {
  int64_t ignore_index = -100;
  double label_smoothing = 0;
};

// logits [..., v], targets [...] -> scalars. Logits split over v are not gathered.
LossSum CrossEntropy(const DTensor& logits, const DTensor& targets, const CrossEntropyOptions& options = {});

// Squared differences of two tensors of one shape; every element counts. Halves are compared and summed in
// f32.
// Errors: InvalidArgument if the shapes differ, where PyTorch would broadcast and warn.
LossSum MseLoss(const DTensor& prediction, const DTensor& target);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_LOSS_H_
