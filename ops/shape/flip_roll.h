// Dims in reverse, and turned.

#ifndef WEFT_OPS_SHAPE_FLIP_ROLL_H_
#define WEFT_OPS_SHAPE_FLIP_ROLL_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "ops/op/op.h"

namespace weft {

struct FlipAttributes {
  absl::InlinedVector<int, Shape::kMaxDims> dims;

  bool operator==(const FlipAttributes&) const = default;
};

struct RollAttributes {
  int dim = 0;
  int64_t shift = 0;  // any; the element at i goes to i + shift, and round the end

  bool operator==(const RollAttributes&) const = default;
};

// The order of the elements reversed along some dims, or turned along one. Copies.
//
// Layout: where such a dim is split, the owners write what they have and leave zero elsewhere: Partial(sum).
//         The other dims may be split.
// Errors: InvalidArgument for a dim outside x or listed twice.
extern const Op<FlipAttributes> kFlip;
extern const Op<RollAttributes> kRoll;

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_FLIP_ROLL_H_
