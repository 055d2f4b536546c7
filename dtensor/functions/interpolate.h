#ifndef WEFT_DTENSOR_FUNCTIONS_INTERPOLATE_H_
#define WEFT_DTENSOR_FUNCTIONS_INTERPOLATE_H_

#include <cstdint>
#include <vector>

#include "dtensor/dtensor.h"
#include "ops/convolution/resample.h"

namespace weft {

// One of the two: extents, or factors of the extents that there are (rounded down), one per spatial dim. With
// factors, places follow from them, and not from the rounded extents, as in PyTorch. A dim whose rounded extent
// is its own stays as it is where the mode is linear.
struct InterpolateOptions {
  std::vector<int64_t> size = {};
  std::vector<double> scale = {};
  ResampleMode mode = ResampleMode::kNearest;
  bool align_corners = false;  // linear and cubic
};

// Images in other extents, as PyTorch's interpolate: x [n, c, l], [n, c, h, w] or [n, c, d, h, w]. kLinear is
// linear, bilinear or trilinear, kCubic is bicubic, by the number of spatial dims: each mode goes dim by dim.
//
// Layout: n and c stay split. Along a spatial dim that is split each rank adds up what it holds, and the result
//         is Partial(sum); one that stays as it is stays split.
// Cost:   no communication: x is not gathered.
// Errors: InvalidArgument for other dims, a number of sizes or factors that is not that of the spatial dims,
//         both or neither, and as kResample.
DTensor Interpolate(const DTensor& x, const InterpolateOptions& options);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_INTERPOLATE_H_
