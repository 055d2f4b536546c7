// A factor on the loss that keeps small gradients of f16 from vanishing.

#ifndef WEFT_DTENSOR_OPTIM_LOSS_SCALE_H_
#define WEFT_DTENSOR_OPTIM_LOSS_SCALE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"

namespace weft {

struct LossScaleOptions {
  double initial = 65536;
  double growth = 2;     // after `interval` updates in a row without overflow
  double backoff = 0.5;  // after an overflow
  int64_t interval = 2000;
};

// Dynamic loss scaling: backward is seeded with the scale, so that what is small in f16 is not 0, and the update divides
// by it. Where a gradient overflows anywhere, the global norm is not finite, no rank updates, and the scale shrinks. All
// of it is scalars on the device: the host waits for nothing. A Trainer does the steps (TrainerOptions::loss_scale); by
// hand:
//   Backward(loss, scale.Seed(loss));
//   const GlobalNorm norm = ComputeGlobalNorm(parameters, max_norm, scale.value());
//   optimizer.Step(lr, norm.scale);
//   scale.Update(norm.norm_squared);
// Source: Micikevicius et al., "Mixed precision training", 2018; the semantics of torch.amp.GradScaler.
class LossScale {
 public:
  // On the mesh of the model's context(): every rank keeps the same.
  // Errors: InvalidArgument for an initial scale that is not above 0, a growth not above 1, a backoff not between 0 and
  //         1, an interval below 1.
  explicit LossScale(const IntrusivePtr<MeshContext>& context, const LossScaleOptions& options = {});

  // The factor: an f32 scalar, replicated.
  const DTensor& value() const { return scale_; }

  // It, in the type of `loss`, which has one element.
  DTensor Seed(const DTensor& loss) const;

  // After a step: `norm_squared` is what ComputeGlobalNorm made of its gradients. A scale that growth would make infinite
  // stays.
  void Update(const DTensor& norm_squared);

  // What is saved with a run: "loss_scale.scale", "loss_scale.good_steps".
  std::vector<std::pair<std::string, DTensor>> State() const;

 private:
  const LossScaleOptions options_;
  DTensor scale_;
  DTensor good_steps_;  // since the scale changed; f32 scalar
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_LOSS_SCALE_H_
