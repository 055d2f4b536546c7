#ifndef WEFT_DTENSOR_FUNCTIONS_EINSUM_H_
#define WEFT_DTENSOR_FUNCTIONS_EINSUM_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "dtensor/dtensor.h"

namespace weft {

// Sums of products over named dims, of any number of operands: Einsum("bij,bjk->bik", {x, w}),
// Einsum("...d,de,...e", {x, w, y}). The text is PyTorch's (ParseEinsum), but for letters that stand twice in
// one term. Of one operand: a sum over dims and a permutation.
//
// Layout: any; each product is a contraction (kContract), or Mul where nothing is summed and one factor only
//         repeats, so that splitting a summed letter gives Partial(sum).
// Cost:   two operands at a time, in OrderContractions' order; letters that nothing else needs are summed at
//         once.
// Errors: InvalidArgument as ParseEinsum and OrderContractions; products take floating operands of one dtype.
DTensor Einsum(absl::string_view equation, const std::vector<DTensor>& operands);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_EINSUM_H_
