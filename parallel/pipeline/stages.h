// Which part of a chain of segments each stage of a pipeline has, and which rank each stage.

#ifndef WEFT_PARALLEL_PIPELINE_STAGES_H_
#define WEFT_PARALLEL_PIPELINE_STAGES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace weft {

// How stages, in the order of the model, lie on the ranks of an axis.
enum class StageOrder : uint8_t {
  kLoop,  // 0 1 2 3, and from there again: 0 1 2 3
  kV,     // there and back: 0 1 2 3 3 2 1 0
};

// The rank of each stage, where each of `ranks` ranks has `chunks`.
// Errors: InvalidArgument for kV with another number of chunks than 2.
std::vector<int> StageRanks(StageOrder order, int ranks, int chunks);

// Cuts a chain of `costs` into `num_parts` consecutive parts, none empty, so that the costliest part costs as little
// as can be; among such cuts the one whose costs have the least sum of squares, and of those the one whose first parts
// are longest. By dynamic programming.
// Returns the parts' lengths.
// Cost:   O(costs^2 x parts) steps.
// Errors: InvalidArgument for fewer costs than parts, fewer than one part, or a cost that is negative or not finite.
std::vector<int> BalanceChain(absl::Span<const double> costs, int num_parts);

}  // namespace weft

#endif  // WEFT_PARALLEL_PIPELINE_STAGES_H_
