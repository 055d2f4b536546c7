#ifndef WEFT_OPS_CONVOLUTION_RESAMPLE_H_
#define WEFT_OPS_CONVOLUTION_RESAMPLE_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

// How an element of the result is made of those of x around its place.
enum class ResampleMode : int {
  kNearest,       // the one at floor(i * in / out)
  kNearestExact,  // the one that the middle of element i falls into
  kLinear,        // of the two around it
  kCubic,         // of four: Keys' kernel with a = -0.75, edges repeated
  kArea           // the mean of all that element i covers
};

struct ResampleAttributes {
  int dim = 0;
  int64_t extent = 0;  // of the dim in the result
  ResampleMode mode = ResampleMode::kNearest;
  bool align_corners = false;  // linear and cubic: the first and last elements stay where they are
  double scale = 0;            // places follow from this factor; 0: from the extents

  bool operator==(const ResampleAttributes&) const = default;
};

// x in `extent` places along one dim: PyTorch's interpolate, which is a product of such passes, dim by dim.
// Weights are f64, sums too, rounded once.
//
// Shape:  x floating; y of its type but for the dim.
// Layout: where the dim of x is split, each rank adds up what it holds: Partial(sum); a rank that is to hold a
//         range of y makes only that. The other dims may be split.
// Errors: InvalidArgument for a dim outside x or an empty one, an extent below 1, align_corners with another
//         mode than linear and cubic, or a scale that is negative or not finite.
// Source: weights as in PyTorch's UpSample.h; R. Keys, "Cubic convolution interpolation for digital image
//         processing", 1981.
extern const Op<ResampleAttributes> kResample;

// dy -> dx: the transpose, with `extent` that of x and dy's extent that of y.
extern const Op<ResampleAttributes> kResampleGrad;

}  // namespace weft

#endif  // WEFT_OPS_CONVOLUTION_RESAMPLE_H_
