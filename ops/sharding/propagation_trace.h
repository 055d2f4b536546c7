#ifndef WEFT_OPS_SHARDING_PROPAGATION_TRACE_H_
#define WEFT_OPS_SHARDING_PROPAGATION_TRACE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "mesh/layout.h"
#include "mesh/redistribution/cost_model.h"
#include "ops/op/op.h"
#include "ops/sharding/axis_candidates.h"

namespace weft {

// What became of a candidate of a search.
enum class CandidateFate : uint8_t {
  kChosen,
  kCostlier,      // another costs less
  kTie,           // costs what the chosen one does, and is listed later
  kPruned,        // dropped before all axes were decided: too many looked cheaper
  kMovesInPlace,  // would nest an operand anew that is updated in place
};

// One combination of choices, an axis each, with what it was taken to cost. Microseconds.
struct TracedCandidate {
  std::vector<AxisCandidate> picks = {};  // by axis; fewer than the mesh has axes if it was pruned
  std::vector<Layout> operands = {};      // where the operands would lie; empty if pruned
  std::vector<Layout> outputs = {};
  std::vector<double>
      operand_us;          // to bring each operand there, by RedistributionMicroseconds; empty if pruned
  double transfer_us = 0;  // their sum; a coarser estimate, axis by axis, if pruned
  double compute_us = 0;   // one rank's share of the work
  double output_us = 0;    // writing one rank's outputs
  CandidateFate fate = CandidateFate::kCostlier;

  double total_us() const { return transfer_us + compute_us + output_us; }
};

// A whole search, as Propagate went through it.
struct PropagationTrace {
  CallRule call;
  std::string decomposed_because;  // where the op's decomposition runs instead: "x is split by d! along tp"
  std::vector<TracedCandidate> candidates;  // in the order in which ties are decided; the pruned ones last
  std::vector<RefusedCandidate> refused;    // what was no candidate, axis by axis
};

// "matmul(f32[8, 6] [dp, -], f32[6, 4] [-, tp])": a call, for errors.
std::string CallText(absl::string_view name, absl::Span<const TensorType> types,
                     absl::Span<const Layout> layouts, const DeviceMesh& mesh);

// "nearest legal layouts: ([dp, -], [-, -]) for 96 bytes, 5.0 us; ...": at most three of the candidates, the
// cheapest to bring the operands to first, with the bytes and the time of PriceRedistribution. Empty if there are none.
std::string NearestLegalLayouts(const PropagationTrace& trace, absl::Span<const TensorType> types,
                                absl::Span<const Layout> layouts, const DeviceMesh& mesh,
                                const CostModel& cost_model);

}  // namespace weft

#endif  // WEFT_OPS_SHARDING_PROPAGATION_TRACE_H_
