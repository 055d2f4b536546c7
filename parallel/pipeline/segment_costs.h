// What the segments of a model cost, measured: what PipelineOptions::costs asks for.

#ifndef WEFT_PARALLEL_PIPELINE_SEGMENT_COSTS_H_
#define WEFT_PARALLEL_PIPELINE_SEGMENT_COSTS_H_

#include <functional>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "dtensor/context/mesh_context.h"
#include "dtensor/nn/segmented_module.h"
#include "mesh/device_mesh.h"
#include "parallel/pipeline/executor.h"
#include "parallel/plan.h"
#include "runtime/base/dtype.h"
#include "runtime/launch/world.h"

namespace weft {

struct SegmentCostOptions {
  DType dtype = DType::kF32;                          // as ParallelizeOptions
  std::optional<DType> compute_dtype = std::nullopt;  // likewise
  int repeats = 5;                                    // of each segment, after one that is not counted
  std::function<double()> clock = nullptr;            // of seconds; null: this machine's
};

// Measures what forward and backward of one microbatch take of each segment of a model without values, in seconds. The
// first rank of `mesh` runs segment after segment, on a single device: it gives the segment's parameters and buffers
// values, runs it on what the segment before has made, and takes the values away again. The model is a spec before and
// after, and random draws of the program are as without.
//
//   Gpt model(config);
//   const std::vector<double> costs = MeasureSegmentCosts(model, world, mesh, make);
//   Parallelize(model, Bind(world, mesh), WithSegmentCosts(plan, costs));
//
// A cost is the median of the repeats. Segments that cannot be told apart have one cost, the median of all their repeats, so
// that noise does not cut equal layers unevenly: those that the model says cost the same, whose modules have the same
// types, whose parameters the same shapes, and whose inputs the same types. The last segment's cost has that of LossOf. A
// parameter that several segments have counts in each. What a plan adds is not in it: recomputation, communication.
//
// `make` gives a microbatch on a context of one device; the first rank alone calls it. Costs are those of its size: give it the
// rows that a rank of the pipeline gets. Every rank gets the same costs.
// Cost:    1 + repeats forwards and backwards of the model, while the other ranks wait, an hour at most. Memory: the values
//          and gradients of one segment, and what it saves for backward. One broadcast of 8 bytes per segment.
// Errors:  FailedPrecondition if the model has values already; InvalidArgument for fewer than one repeat; whatever `make` and
//          the model throw on the first rank, and FailedPrecondition on the others then. Nothing of the measurement is left
//          in the model.
// Threads: every rank of the mesh calls it alike, before the mesh is bound.
std::vector<double> MeasureSegmentCosts(
    SegmentedModule& model, World& world, const DeviceMesh& mesh,
    absl::FunctionRef<Microbatch(const IntrusivePtr<MeshContext>& context)> make,
    const SegmentCostOptions& options = {});

// A plan whose stages are balanced by these costs: its Pipeline entry with them in the place of the costs or sizes that it
// had.
Plan WithSegmentCosts(const Plan& plan, absl::Span<const double> costs);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_SEGMENT_COSTS_H_
