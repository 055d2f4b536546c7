// Tensors one behind the other along a dim.

#ifndef WEFT_OPS_SHAPE_CONCAT_H_
#define WEFT_OPS_SHAPE_CONCAT_H_

#include "ops/op/op.h"

namespace weft {

struct ConcatAttributes {
  int dim = 0;

  bool operator==(const ConcatAttributes&) const = default;
};

// The operands one after the other along a dim that they all have.
//
// Layout: where that dim is split, it is so in every operand, each into chunks of its own; the owners write
//         what they have and leave zero elsewhere: Partial(sum). The others may be split.
// Errors: InvalidArgument for no operands, or operands that differ in dtype or another dim.
extern const Op<ConcatAttributes> kConcat;

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_CONCAT_H_
