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
  double growth = 2;        // after `interval` updates in a row without overflow
  double backoff = 0.5;     // after an overflow
  int64_t interval = 2000;  // 0: the scale stays `initial`, also after an overflow, which skips its update
  double min = 0;           // which a smaller scale is raised to
  int hysteresis =
      1;  // overflows until it shrinks, since the start or since it grew last; from then on each shrinks it

  bool operator==(const LossScaleOptions&) const = default;
};

// Dynamic loss scaling: backward is seeded with the scale, so that what is small in f16 is not 0, and the update divides
// by it. Where a gradient overflows anywhere, the global norm is not finite, no rank updates, and the scale shrinks. All
// of it is scalars on the device: the host waits for nothing. A Trainer does the steps (TrainerOptions::loss_scale); by
// hand:
//   Backward(loss, scale.Seed(loss));
//   const GlobalNorm norm = ComputeGlobalNorm(parameters, max_norm, scale.value());
//   optimizer.Step(lr, norm.scale);
//   scale.Update(norm.norm_squared);
// Source: Micikevicius et al., "Mixed precision training", 2018; the semantics of torch.amp.GradScaler. `min` and `hysteresis`
//         are DeepSpeed's (DynamicLossScaler, min_scale and delayed_shift), but that an overflow at the smallest scale skips
//         the update as others do and is no error.
class LossScale {
 public:
  // On the mesh of the model's context(): every rank keeps the same.
  // Errors: InvalidArgument for an initial scale that is not above 0 or that f32 does not hold, a growth not above 1 or not
  //         finite, a backoff not between 0 and 1, an interval below 0, a hysteresis below 1, a `min` below 0 or
  //         above the initial scale.
  explicit LossScale(const IntrusivePtr<MeshContext>& context, const LossScaleOptions& options = {});

  // The factor: an f32 scalar, replicated.
  const DTensor& value() const { return scale_; }

  // It, in the type of `loss`, which has one element.
  DTensor Seed(const DTensor& loss) const;

  // After a step: `norm_squared` is what ComputeGlobalNorm made of its gradients. A scale that growth would make infinite
  // stays; one that is fixed is `initial` again, if another was loaded. `counted`: how much the step's loss counted, a
  // scalar; where it is 0 there was no update, and nothing changes. Undefined: there was something.
  void Update(const DTensor& norm_squared, const DTensor& counted = DTensor());

  // What is saved with a run: "loss_scale.scale", "loss_scale.good_steps"; with a hysteresis above 1 "loss_scale.patience".
  std::vector<std::pair<std::string, DTensor>> State() const;

 private:
  const LossScaleOptions options_;
  DTensor scale_;
  DTensor good_steps_;  // since the scale changed, or an overflow; f32 scalar
  DTensor patience_;    // overflows until it shrinks, at least 1; f32 scalar; undefined without hysteresis
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_LOSS_SCALE_H_
