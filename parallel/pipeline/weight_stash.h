// Which weights a microbatch reads, where stages are updated within the step.

#ifndef WEFT_PARALLEL_PIPELINE_WEIGHT_STASH_H_
#define WEFT_PARALLEL_PIPELINE_WEIGHT_STASH_H_

#include <vector>

#include "dtensor/dtensor.h"
#include "dtensor/nn/parameter.h"
#include "parallel/pipeline/schedule.h"

namespace weft {

// The values of a stage's parameters, by their order.
using StageWeights = std::vector<DTensor>;

// Keeps versions of weights by reference: an update goes on in a copy (Parameter::Fork) while somebody reads what it would
// change, and a version goes with its last reader.
//
// Threads: the rank's.
class WeightStash {
 public:
  // `parameters`: of each stage; empty lists where nothing is updated within the step.
  WeightStash(WeightVersions versions, int microbatches_per_update,
              std::vector<std::vector<Parameter*>> parameters);

  // Updates are counted from here. Before the first F and behind the last update.
  void Restart();

  // What F of the microbatch is to read; its backward reads the same.
  StageWeights For(int stage, int microbatch) const;

  // Before the stage is updated, and behind it. `is_read`: microbatches are in flight that have what For gave.
  void BeginUpdate(int stage, bool is_read);
  void EndUpdate(int stage) { ++num_updates_[stage]; }

  // While it lives, the stage's parameters have these values.
  class Reading {
   public:
    Reading(const WeightStash& stash, int stage, const StageWeights& weights);
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    const std::vector<Parameter*>& parameters_;
    StageWeights before_;
  };

 private:
  const WeightVersions versions_;
  const int microbatches_per_update_;
  const std::vector<std::vector<Parameter*>> parameters_;
  std::vector<int> num_updates_;        // of each stage
  std::vector<StageWeights> previous_;  // before the last of them, under WeightVersions::kPrevious
};

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_WEIGHT_STASH_H_
