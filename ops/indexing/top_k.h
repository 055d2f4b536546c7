// The largest or smallest elements along a dim.

#ifndef WEFT_OPS_INDEXING_TOP_K_H_
#define WEFT_OPS_INDEXING_TOP_K_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

struct TopKAttributes {
  int dim = 0;
  int64_t k = 1;
  bool largest = true;

  bool operator==(const TopKAttributes&) const = default;
};

// The k largest (or smallest) elements along a dim, best first, and where they stand. As in kSort, NaN is
// greater than all numbers; of equal elements the one of the lower index comes first.
//
// Shape:  x of any dtype -> values of its dtype and indices i64, x's shape with k in place of the dim.
// Layout: a split dim is decomposed: every piece gives its k best, which are gathered, values and indices,
//         and searched again; where x itself is no larger than those, it is gathered. The gradient goes back
//         to the indices, where the operand lies.
// Errors: InvalidArgument for a dim outside x, or k outside [0, its extent].
extern const Op<TopKAttributes> kTopK;

// The steps of the decomposition. The k best of a piece, indices in the whole tensor; where it has fewer, the
// rest are the worst there is, with an index of 2^63 - 1.
extern const Op<TopKAttributes> kTopKCandidates;
// values indices -> the k best of them.
extern const Op<TopKAttributes> kTopKMerge;

}  // namespace weft

#endif  // WEFT_OPS_INDEXING_TOP_K_H_
