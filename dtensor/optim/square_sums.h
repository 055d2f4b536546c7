// Sums of squares of many tensors, wherever they lie.

#ifndef WEFT_DTENSOR_OPTIM_SQUARE_SUMS_H_
#define WEFT_DTENSOR_OPTIM_SQUARE_SUMS_H_

#include <vector>

#include "dtensor/dtensor.h"

namespace weft {

// [n]: the sum of squares of each of n tensors, each element once, replicated. f64 if the first is,
// otherwise f32.
//
// Cost:   for each set of axes that splits some of them one all-reduce of their sums, under purpose `norm`.
// Errors: InvalidArgument for none.
DTensor SquareSums(const std::vector<DTensor>& tensors);

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_SQUARE_SUMS_H_
