// Whether stages of a pipeline that have a parameter in common (a tied table) hold the same bits of it.

#ifndef WEFT_PARALLEL_STAGE_REPLICAS_H_
#define WEFT_PARALLEL_STAGE_REPLICAS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/dtensor.h"
#include "dtensor/nn/model_stages.h"
#include "dtensor/nn/segmented_module.h"
#include "parallel/replicas.h"

namespace weft {

// A parameter of stages that lie on several ranks along the pipeline's axis.
struct SharedParameter {
  Parameter* parameter = nullptr;  // may be elsewhere (Parameter::is_here)
  std::vector<int> indices = {};   // of those ranks, along the axis, ascending
};

// Those of a model, in order of registration: the same on every rank.
std::vector<SharedParameter> ParametersOfSeveralStages(SegmentedModule& model, const ModelStages& stages);

// The world ranks at these indices along the pipeline's axis and at this rank's own along the others, ascending.
std::vector<int> RanksAlongPipeline(const ModelStages& stages, absl::Span<const int> indices);

// A value of some of the ranks along a pipeline's axis: tensors on the slices that their stages lie on, laid alike.
struct StagedValue {
  std::string name;
  DTensors tensors = {};  // none: of other ranks
};

// Compares what the ranks along the pipeline's axis hold of each value, by a hash of its bits. Those within a slice are
// CompareReplicas' to compare.
//
// Cost:    each rank reads its pieces once; one all-reduce along the pipeline's axis of 16 bytes per value and one over the
//          mesh of 8, under purpose `metric`, which the host waits for. Nothing of no values.
// Threads: every rank of the model calls it alike, with the same names, and gets the same.
std::optional<ReplicaDifference> CompareAcrossStages(const ModelStages& stages,
                                                     absl::Span<const StagedValue> values);

}  // namespace weft

#endif  // WEFT_PARALLEL_STAGE_REPLICAS_H_
