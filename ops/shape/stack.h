// Tensors along a new dim.

#ifndef WEFT_OPS_SHAPE_STACK_H_
#define WEFT_OPS_SHAPE_STACK_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "ops/op/op.h"

namespace weft {

struct StackAttributes {
  int dim = 0;  // of the result
  // Extent of that dim, and where along it each operand stands; zeros stand where none does. Empty: as many
  // as there are operands, in order.
  int64_t extent = 0;
  absl::InlinedVector<int64_t, 4> positions = {};

  bool operator==(const StackAttributes&) const = default;
};

struct UnbindAttributes {
  int dim = 0;

  bool operator==(const UnbindAttributes&) const = default;
};

// The operands, all of one type, side by side along a new dim.
//
// Layout: the new dim is whole; the others may be split.
// Errors: InvalidArgument for no operands, operands of several types, a dim outside the result, or positions
//         that are not increasing within the extent.
extern const Op<StackAttributes> kStack;

// Views of x at each index of one dim, without that dim: as many outputs as its extent, which may not be 0.
//
// Layout: that dim is whole; the others may be split.
extern const Op<UnbindAttributes> kUnbind;

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_STACK_H_
