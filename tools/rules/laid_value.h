#ifndef WEFT_TOOLS_RULES_LAID_VALUE_H_
#define WEFT_TOOLS_RULES_LAID_VALUE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/tensor/tensor.h"
#include "tools/rules/local_kernel.h"
#include "tools/rules/tensor_difference.h"

namespace weft {

// How the terms of a Partial share its value.
enum class TermForm {
  kScattered,  // no two terms alike, of changing signs
  kKept,       // sum, avg: one coordinate has it all, the others zero: what Replicate to Partial makes.
               // Others as kScattered
};

// What the rank at `coordinate` holds of `value` under `layout`, row-major. Along Partial axes its term:
//
//   sum, avg   scattered terms are quarters in [-3, 4), the last what is missing; of -0.0 every term is -0.0
//   max, min   one term has the value, the others lie 1/2 to 4 on the far side of it
//   product    scattered terms are +-1/2, +-1 and +-2 (+-1 for integers), the last what is missing
//   of bools   sum, avg and max are "or", min and product "and": one term has the value, others may
//
// An infinity or nan is in one term and the others are finite: so terms hold infinities of one sign only,
// since inf and -inf in two terms of one value would denote nan, not inf. (-inf as a max is -inf in all.)
// Terms follow from `seed` alone, so that every rank works out the same.
Piece LaidPiece(const Tensor& value, const Layout& layout, const DeviceMesh& mesh,
                absl::Span<const int64_t> coordinate, TermForm form, uint64_t seed);

// What is the matter with the value that `pieces` (by rank, under `layout`) denote, against `expected`: empty
// if nothing is. Ranks that differ along Replicate axes only must agree bit by bit, signed zeros included;
// any nan is any other. Partial terms are combined in f64, min and max give nan if a term is nan, of bools
// the sum is "or".
std::string DenotedDifference(absl::Span<const Tensor> pieces, const Tensor& expected, const Layout& layout,
                              const DeviceMesh& mesh, const Closeness& closeness);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_LAID_VALUE_H_
