// A tensor in pieces along a dim.

#ifndef WEFT_OPS_SHAPE_SPLIT_H_
#define WEFT_OPS_SHAPE_SPLIT_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "ops/op/op.h"

namespace weft {

struct SplitAttributes {
  int dim = 0;
  absl::InlinedVector<int64_t, 4> sizes;  // along dim, in order; they add up to its extent

  bool operator==(const SplitAttributes&) const = default;
};

// x cut along one dim into as many outputs as there are sizes; views, but for the case below.
//
// Layout: where that dim is split, every output is Partial(sum): the owners give what they have of it and the
//         others zero. The other dims may be split.
// Errors: InvalidArgument for a dim outside x, and sizes that are negative, none, or not its extent together.
extern const Op<SplitAttributes> kSplit;

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_SPLIT_H_
