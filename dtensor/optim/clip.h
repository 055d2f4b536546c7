#ifndef WEFT_DTENSOR_OPTIM_CLIP_H_
#define WEFT_DTENSOR_OPTIM_CLIP_H_

#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/nn/parameter.h"

namespace weft {

// The norm of all gradients together, and what to multiply them by.
struct GlobalNorm {
  DTensor norm_squared;  // scalar, replicated; f64 if any gradient is, otherwise f32
  // Scalar, replicated: min(1, max_norm / norm); undefined if max_norm is 0, and there is no loss scale, by which it is
  // divided.
  DTensor scale;
};

// Sums the squares of the at-rest gradients over the whole mesh, each element once: a replicated gradient counts
// once, a sharded one by its pieces, a parameter that is listed several times once, and tied names are the parameter that
// they name. Nothing is read back to the host: a norm that is not finite makes a scale that is not, and the optimizer's
// update skips itself.
//
// Cost:   one all-reduce of a scalar over the axes that shard any parameter, under purpose `norm`. On a GPU
//         four launches for up to 200 gradients that lie alike, a few more beyond.
// `loss_scale`: by which the gradients are too large (dtensor/optim/loss_scale.h), a replicated scalar; undefined: by
// none. The norm is that of the gradients without it.
// `model`: what the parameters are some of. Where ranks have different stages or parts of it, those of one may have nothing
// to train (Module::TrainableParameters), or no parameter at all, and give none: they add nothing to the sum, and wait for it like the
// others. Null: each rank gives one at least.
// Errors: InvalidArgument for a `max_norm` below 0; FailedPrecondition if no parameter has a gradient; of a model in stages or
//         parts the norm is 0 then.
GlobalNorm ComputeGlobalNorm(const std::vector<Parameter*>& parameters, double max_norm,
                             const DTensor& loss_scale = DTensor(), Module* model = nullptr);

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_CLIP_H_
