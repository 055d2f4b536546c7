#ifndef WEFT_DTENSOR_FUNCTIONS_SORT_H_
#define WEFT_DTENSOR_FUNCTIONS_SORT_H_

#include "dtensor/dtensor.h"

// Elements in order along a dim, and where they stood (i64). NaN is greater than all numbers; equal elements
// keep their order, so there is no `stable` flag. Gradients go back to where the elements stood.
//
// Errors: InvalidArgument for a dim outside x.
namespace weft {

struct SortedElements {
  DTensor values;
  DTensor indices;
};

// Layout: a split dim is gathered.
// Cost:   an all-gather of x where the dim is split; else none.
SortedElements Sort(const DTensor& x, int dim = -1, bool descending = false);

struct TopKOptions {
  int dim = -1;
  bool largest = true;
};
// The k best, best first (PyTorch's sorted = true).
// Layout: of a split dim, the k best of every piece are gathered.
// Cost:   an all-gather of k values and indices per row and piece where the dim is split, or of x where it is no larger.
// Errors: InvalidArgument for k outside [0, the dim's extent].
SortedElements TopK(const DTensor& x, int64_t k, const TopKOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_SORT_H_
