#ifndef WEFT_DTENSOR_OPTIM_CLIP_H_
#define WEFT_DTENSOR_OPTIM_CLIP_H_

#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/nn/parameter.h"

namespace weft {

// The norm of all gradients together, and what to multiply them by.
struct GlobalNorm {
  DTensor norm_squared;  // scalar, replicated
  // Scalar, replicated: min(1, max_norm / norm); undefined if max_norm is 0, and there is no loss scale, by which it is
  // divided.
  DTensor scale;
};

// Sums the squares of the at-rest gradients over the whole mesh, each element once (a replicated gradient
// counts once, a sharded one by its pieces). Nothing is read back to the host: a norm that is not finite
// makes a scale that is not, and the optimizer's update skips itself.
//
// Cost:   one all-reduce of a scalar over the axes that shard any parameter, under purpose `norm`. On a GPU
//         four launches for up to 200 gradients that lie alike, a few more beyond.
// `loss_scale`: by which the gradients are too large (dtensor/optim/loss_scale.h), a replicated scalar; undefined: by
// none. The norm is that of the gradients without it.
// Errors: FailedPrecondition if no parameter has a gradient.
GlobalNorm ComputeGlobalNorm(const std::vector<Parameter*>& parameters, double max_norm,
                             const DTensor& loss_scale = DTensor());

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_CLIP_H_
