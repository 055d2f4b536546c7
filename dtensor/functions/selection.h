#ifndef WEFT_DTENSOR_FUNCTIONS_SELECTION_H_
#define WEFT_DTENSOR_FUNCTIONS_SELECTION_H_

#include <cstdint>

#include "dtensor/dtensor.h"

// Results whose extent depends on values: the elements under a mask, the places that are not 0, the distinct
// values. Shapes are static here, so each comes in two forms:
//
//   with a Capacity: the result has that extent, whatever the values. Its first `count` places are used, and
//   the rest is `fill`. A count above the capacity says how many there would have been: the first `capacity`
//   of them are there. Nothing waits for the device.
//
//   without: the extent is the count. *The host waits*: all ranks reduce the count and read it, so that they
//   agree on the shape. Each new count is a new shape, for which calls are planned again.
//
// Cost:   a running count of the elements in row-major order (one number per piece travels), and an all-reduce
//         of the places found, where x is split; a tensor that is split along another dim than the first is
//         redistributed, as Flatten does.
// Errors: InvalidArgument for a negative capacity, or a fill that the dtype cannot hold.
namespace weft {

struct Capacity {
  int64_t extent = 0;
  double fill = 0;
};

// Of one dim, and how many of them count, an i64 scalar.
struct SelectedElements {
  DTensor values;
  DTensor count;
};

// The elements of x where the bool mask holds, in row-major order: [capacity]. Gradients go back to them.
// Shape:  the mask has x's shape, or broadcasts to it.
SelectedElements MaskedSelect(const DTensor& x, const DTensor& mask, const Capacity& capacity);
DTensor MaskedSelect(const DTensor& x, const DTensor& mask);

// Where x is not 0, in row-major order: i64 [capacity, ndim of x]. Carries no gradient.
SelectedElements NonZero(const DTensor& x, const Capacity& capacity);
DTensor NonZero(const DTensor& x);

// The distinct elements, in ascending order, as PyTorch's unique of the flattened tensor: NaNs differ from each
// other. Carries no gradient.
struct UniqueElements {
  DTensor values;   // [capacity]
  DTensor inverse;  // i64, of x's shape: which of the values each element is, counted beyond the capacity too
  DTensor counts;   // i64 [capacity]: how often each of the values stands in x; 0 beyond
  DTensor count;
};
// Cost:   besides, x is gathered to be sorted.
UniqueElements Unique(const DTensor& x, const Capacity& capacity);
UniqueElements Unique(const DTensor& x);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_SELECTION_H_
