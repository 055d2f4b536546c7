#ifndef WEFT_MESH_REDISTRIBUTION_LOWERING_H_
#define WEFT_MESH_REDISTRIBUTION_LOWERING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "mesh/device_mesh.h"
#include "mesh/redistribution/redistribution.h"
#include "mesh/redistribution/region.h"
#include "runtime/tensor/shape.h"

namespace weft {

// A rank's part in a region exchange, in terms of its own piece before and after.
struct LoweredExchange {
  std::vector<RegionMessage> sends;     // regions of the input
  std::vector<RegionMessage> receives;  // regions of the output
  Region kept_from;                     // of the input,
  Region kept_to;                       // which becomes this of the output
};

// `exchange` is in terms of the whole tensor; the rank's pieces begin at these places.
LoweredExchange LowerExchange(const RegionExchange& exchange, const Shape& input_offset,
                              const Shape& output_offset);

// One step of a plan on one rank: which parts of its piece go where. Members are numbered by group rank.
struct LoweredStep {
  StepKind kind = StepKind::kSlice;
  AxisList axes;  // of the group; ascending
  ReduceOp op = ReduceOp::kSum;
  int64_t group_size = 1;
  bool first_in_group = true;  // index 0 along every axis
  Shape result_shape;          // of this rank's piece

  // Regions of this rank's input and of its output. Reduce-scatter and all-to-all send one to every member,
  // all-gather and all-to-all receive one from every member, empty ones included; all-gather and slice have
  // one in `sent`, what this rank keeps.
  std::vector<Region> sent;
  std::vector<Region> received;
  std::vector<int64_t> sent_counts;  // elements of each
  std::vector<int64_t> received_counts;
  bool sent_in_order = false;      // the input is these regions one after another
  bool received_in_order = false;  // the output is

  LoweredExchange exchange;  // of permute and send-regions
};

// What this rank does in a plan: worked out once, and run as often as the plan is met.
struct LoweredRedistribution {
  Redistribution plan;
  std::vector<LoweredStep> steps;
};

// Lowers `plan` of a tensor of `shape` for the rank at `coordinate`.
LoweredRedistribution Lower(Redistribution plan, const Shape& shape, const DeviceMesh& mesh,
                            absl::Span<const int64_t> coordinate);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_LOWERING_H_
