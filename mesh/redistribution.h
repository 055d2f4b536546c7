#ifndef WEFT_MESH_REDISTRIBUTION_H_
#define WEFT_MESH_REDISTRIBUTION_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/base/reduce_op.h"

namespace weft {

// One step from a layout to the next. All but kSlice and kToPartial communicate, in groups over `axes`.
enum class StepKind : uint8_t {
  kAllGather,      // the innermost shard axis of `from_dim` becomes Replicate
  kReduceScatter,  // a Partial axis becomes the innermost shard axis of `to_dim`
  kAllReduce,      // Partial axes become Replicate
  kAllToAll,       // the innermost shard axis of `from_dim` becomes the innermost of `to_dim`
  kSlice,          // a Replicate axis becomes the innermost shard axis of `to_dim`; no communication
  kToPartial,  // a Replicate axis becomes Partial: sum and avg keep the value on index 0 and zero elsewhere
               // (avg scaled by the axis size), product one elsewhere; min and max keep it everywhere; no
               // communication
};

// "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "slice", "to_partial".
absl::string_view StepKindName(StepKind kind);

struct RedistributionStep {
  StepKind kind = StepKind::kSlice;
  AxisList axes = {};  // one, but for kAllReduce, where several reduce together
  int from_dim = -1;
  int to_dim = -1;
  ReduceOp op = ReduceOp::kSum;  // of the Partial axes; kAvg divides by the product of their sizes
  Layout result = {};            // after this step

  bool operator==(const RedistributionStep&) const = default;
};

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

std::ostream& operator<<(std::ostream& out, StepKind kind);
std::ostream& operator<<(std::ostream& out, const RedistributionStep& step);
std::ostream& operator<<(std::ostream& out, const Redistribution& plan);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_H_
