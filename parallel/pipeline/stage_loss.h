// The loss that the last stage has, for all of a model.

#ifndef WEFT_PARALLEL_PIPELINE_STAGE_LOSS_H_
#define WEFT_PARALLEL_PIPELINE_STAGE_LOSS_H_

#include "dtensor/context/mesh_context.h"
#include "dtensor/dtensor.h"
#include "dtensor/functions/loss.h"
#include "dtensor/nn/segmented_module.h"

namespace weft {

// The model's LossOf a microbatch. What it draws is no module's, as on one device, where each microbatch begins anew.
LossSum LossOfMicrobatch(SegmentedModule& model, const DTensors& outputs, const DTensor& targets);

// Adds up the losses of a step's microbatches on the ranks of the last stage, and lays the sum over the ranks of the whole
// model, where every other rank's term is 0: nothing is communicated until somebody reads it.
//
// Threads: the rank's.
class StageLoss {
 public:
  // `part`: of this rank's stages, a slice of `whole`.
  StageLoss(const IntrusivePtr<MeshContext>& whole, const IntrusivePtr<MeshContext>& part)
      : whole_(whole), part_(part) {}

  // Scalars of the last stage, with or without a history; `count` may be undefined.
  // Cost:   an all-reduce of each that is Partial and no sum.
  void Add(const DTensor& sum, const DTensor& count = DTensor());
  // Of what PipelineExecutor::Run is given, on every rank: the last stage alone reads it.
  // Errors: InvalidArgument, if it is no scalar on the slice.
  void RequireTotal(const DTensor& total) const;
  // loss.Over(total), divided in f64: under a large loss scale the quotient may be more than the loss's own dtype holds.
  void AddOver(const LossSum& loss, const DTensor& total);

  // The sums since the last call, f64 with no history, Partial along all axes of the whole context; of a slice, those that
  // are not fixed.
  LossSum Take();
  // Forgets what has been added since.
  void Clear() { sum_ = count_ = DTensor(); }

 private:
  DTensor TermOfAll(const DTensor& scalar) const;

  const IntrusivePtr<MeshContext> whole_;
  const IntrusivePtr<MeshContext> part_;
  DTensor sum_, count_;  // on the slice; undefined on other stages
};

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_STAGE_LOSS_H_
