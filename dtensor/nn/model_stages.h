#ifndef WEFT_DTENSOR_NN_MODEL_STAGES_H_
#define WEFT_DTENSOR_NN_MODEL_STAGES_H_

#include <memory>
#include <vector>

#include "dtensor/nn/model_parts.h"

namespace weft {

// What belongs to the stages of this rank and lies spread over their ranks: parameters that are gathered for compute,
// gradients that are reduced. Whoever runs the stages says when.
//
// Threads: the rank's; all ranks that have the same stages call alike.
class StageData {
 public:
  virtual ~StageData() = default;

  // Begins to gather the stage's parameters that rest split; they are here until Reshard. In turns.
  virtual void Unshard(int stage) = 0;
  virtual void Reshard(int stage) noexcept = 0;
  // Before the step's first pass: what is in gradients by now is no part of what FinishGradients sums.
  virtual void Begin() = 0;
  // Begins to bring the stage's gradients, which passes have added up on each rank, to rest. Once a step, behind the last.
  virtual void ReduceGradients(int stage) = 0;
  // The same of what several stages have: sums its gradients over them, and adds what there was before. Behind all of the
  // step's ReduceGradients, on every rank of the model.
  // Cost: an all-reduce of each such gradient over the ranks that have it.
  virtual void FinishGradients() = 0;
  // After an error: parameters are held no longer, and what passes have added up is dropped, but for what is in gradients at
  // rest already.
  virtual void Abandon() noexcept = 0;
};

// How a model is cut into stages, and where they lie: on slices of its mesh. A value, but for `data`.
struct ModelStages : ModelParts {
  std::vector<int> stage_ranks = {};     // the index along the axis of each stage's rank
  std::vector<int> first_segments = {};  // of each stage, and behind the last: stage s runs [s] up to [s + 1]
  std::shared_ptr<StageData> data = nullptr;

  int num_stages() const { return static_cast<int>(stage_ranks.size()); }
};

}  // namespace weft

#endif  // WEFT_DTENSOR_NN_MODEL_STAGES_H_
