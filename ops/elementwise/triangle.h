// The lower or upper triangle of matrices.

#ifndef WEFT_OPS_ELEMENTWISE_TRIANGLE_H_
#define WEFT_OPS_ELEMENTWISE_TRIANGLE_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

struct TriangleAttributes {
  bool lower = true;
  int64_t diagonal = 0;  // 0 is the main one, positive ones lie above it

  bool operator==(const TriangleAttributes&) const = default;
};

// x with zeros above (lower) or below the diagonal of its last two dims: tril and triu. What is zeroed is 0
// also where x is not finite.
//
// Layout: every dim may be split: a piece knows its place.
// Errors: InvalidArgument for an x of less than two dims.
extern const Op<TriangleAttributes> kTriangle;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_TRIANGLE_H_
