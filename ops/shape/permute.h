// Dims in another order.

#ifndef WEFT_OPS_SHAPE_PERMUTE_H_
#define WEFT_OPS_SHAPE_PERMUTE_H_

#include "absl/container/inlined_vector.h"
#include "ops/op/op.h"

namespace weft {

struct PermuteAttributes {
  absl::InlinedVector<int, Shape::kMaxDims> order;

  bool operator==(const PermuteAttributes&) const = default;
};

// A view of x whose dim i is dim order[i] of x.
//
// Layout: every dim may be split.
// Errors: InvalidArgument unless `order` holds each dim of x once.
extern const Op<PermuteAttributes> kPermute;

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_PERMUTE_H_
