#ifndef WEFT_MESH_REDISTRIBUTION_REDISTRIBUTION_H_
#define WEFT_MESH_REDISTRIBUTION_REDISTRIBUTION_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/base/reduce_op.h"

namespace weft {

// One step from a layout to the next. In the kinds that communicate, every rank ends with its box of the
// result and gets what it lacks from the members of its group over the step's axes; any number of axes, on
// any dims.
enum class StepKind : uint8_t {
  kAllGather,      // shard axes, innermost on their dims, become Replicate: all members end with the same box
  kReduceScatter,  // Partial axes of one kind become shards, innermost on their dims
  kAllReduce,      // Partial axes of one kind become Replicate
  kAllToAll,       // shard axes change dims or order: every member has something for many others
  kPermute,        // the same where each rank's new box is one rank's old box: one message each way
  kSendRegions,    // any other change of shards: each rank gets exactly the regions that it lacks
  kSlice,      // the new box lies within the old one: a view, no communication. Also any change of axes of
               // size 1
  kToPartial,  // Replicate axes become Partial: sum keeps the value on index 0 and has -0.0 elsewhere, which
               // changes no value, product one; avg, min and max keep the value everywhere, which an
               // average over NCCL may round; no communication
};

// "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "send_regions", "slice",
// "to_partial".
absl::string_view StepKindName(StepKind kind);

struct RedistributionStep {
  StepKind kind = StepKind::kSlice;
  AxisList axes = {};            // ascending; of the groups that communicate, or whose placement changes
  ReduceOp op = ReduceOp::kSum;  // of the Partial axes; kAvg divides by the product of their sizes
  Layout result = {};            // after this step

  bool operator==(const RedistributionStep&) const = default;
};

// Whether the ranks exchange anything.
bool Communicates(StepKind kind);

// A sequence of steps that changes where a value lies and not the value.
struct Redistribution {
  Layout from;
  Layout to;
  std::vector<RedistributionStep> steps;

  bool operator==(const Redistribution&) const = default;

  // "[dp, -] -all_gather(dp)-> [-, -]"; without a mesh, axes are a0, a1, ...
  std::string ToString(const DeviceMesh& mesh) const;
  std::string ToString() const;
};

// Errors: InvalidArgument unless both ends of a redistribution have the same ndim and the mesh's number of
//         axes.
void CheckEnds(const Layout& from, const Layout& to, const DeviceMesh& mesh);

std::ostream& operator<<(std::ostream& out, StepKind kind);
std::ostream& operator<<(std::ostream& out, const RedistributionStep& step);
std::ostream& operator<<(std::ostream& out, const Redistribution& plan);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_REDISTRIBUTION_H_
