#ifndef WEFT_OPS_SHAPE_PERMUTE_H_
#define WEFT_OPS_SHAPE_PERMUTE_H_

#include <utility>

#include "absl/container/inlined_vector.h"
#include "ops/op/op.h"

namespace weft {

struct PermuteAttributes {
  absl::InlinedVector<int, Shape::kMaxDims> order;

  bool operator==(const PermuteAttributes&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const PermuteAttributes& a) {
    return H::combine(std::move(state), a.order);
  }
};

// A view of x whose dim i is dim order[i] of x.
//
// Layout: every dim may be split.
// Errors: InvalidArgument unless `order` holds each dim of x once.
extern const Op<PermuteAttributes> kPermute;

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_PERMUTE_H_
