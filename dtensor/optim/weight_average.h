// An average of a model's weights over its training, which often evaluates better than the last ones.

#ifndef WEFT_DTENSOR_OPTIM_WEIGHT_AVERAGE_H_
#define WEFT_DTENSOR_OPTIM_WEIGHT_AVERAGE_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/nn/parameter.h"

namespace weft {

struct WeightAverageOptions {
  // EMA: a <- decay a + (1 - decay) p. Not given, SWA: the mean of all p that were taken in. Either way the
  // first is taken as it is.
  std::optional<double> decay = std::nullopt;

  bool operator==(const WeightAverageOptions&) const = default;
};

// EMA or SWA of parameters. Call Update after an optimizer's step (EMA), or now and then near a training's
// end (SWA); SwapWithModel to evaluate or to export, and again to go on.
//
//   WeightAverage average(model.AllParameters(), {.decay = 0.999});
//   trainer callback:  average.Update();
//   evaluation:        average.SwapWithModel(); Evaluate(...); average.SwapWithModel();
//
// Averages lie as the optimizer's state does, so they are sharded wherever that is. Statistics that modules
// gather in forward are no parameters, and not averaged.
//
// State: "average.<path>" per parameter, and "average.count", how many were taken in. Saved beside the
//        model's (SaveTensors), loaded by LoadTensors, on any mesh.
// Source: PyTorch's AveragedModel, with get_ema_multi_avg_fn(decay) or without. Izmailov et al., "Averaging
//         weights leads to wider optima and better generalization", arXiv 1803.05407.
class WeightAverage {
 public:
  // `parameters`: may be none, where a rank's stage or part of the model has none; then nothing is averaged and there is
  // no state. One that is listed several times counts once; tied slots stand for the parameter that they are names of.
  // Errors: FailedPrecondition before the parameters are materialized; InvalidArgument for a decay outside [0, 1].
  explicit WeightAverage(std::vector<Parameter*> parameters, const WeightAverageOptions& options = {});

  // Takes the parameters in as they are.
  // Errors: FailedPrecondition while the model has the averages.
  void Update();

  // The model gets the averages, and its own values stay here; the second call turns it back, bit for bit.
  // Cost:   where the state is split and the parameter at rest is not (ZeRO-1, -2), a gather per parameter.
  // Errors: FailedPrecondition before the first Update, where there are parameters.
  void SwapWithModel();
  bool is_swapped() const { return is_swapped_; }

  // Errors: FailedPrecondition while the model has the averages.
  std::vector<std::pair<std::string, DTensor>> State() const;

 private:
  void RequireNotSwapped(const char* what) const;

  std::vector<Parameter*> parameters_;
  WeightAverageOptions options_;
  std::vector<DTensor> averages_;
  DTensor count_;  // i64 scalar; undefined without parameters
  bool is_swapped_ = false;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_OPTIM_WEIGHT_AVERAGE_H_
