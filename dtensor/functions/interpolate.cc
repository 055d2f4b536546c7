#include "dtensor/functions/interpolate.h"

#include <cmath>

#include "absl/strings/str_join.h"
#include "dtensor/dispatch.h"

namespace weft {
namespace {

void RequireOptions(const DTensor& x, const InterpolateOptions& options) {
  const int spatial = x.ndim() - 2;
  WEFT_REQUIRE(spatial >= 1 && spatial <= 3,
               "Interpolate: expected x [n, c, ...] of one to three spatial dims, got ", x.ToString());
  WEFT_REQUIRE(options.size.empty() != options.scale.empty(), "Interpolate: expected a size or a scale, got ",
               options.size.empty() ? "neither" : "both");
  WEFT_REQUIRE(static_cast<int>(options.size.size() + options.scale.size()) == spatial,
               "Interpolate: expected ", spatial, " numbers for ", x.ToString(), ", got {",
               absl::StrJoin(options.size, ", "), absl::StrJoin(options.scale, ", "), "}");
  for (const double scale : options.scale) {
    WEFT_REQUIRE(scale > 0 && std::isfinite(scale), "Interpolate: expected positive factors, got ", scale);
  }
}

}  // namespace

DTensor Interpolate(const DTensor& x, const InterpolateOptions& options) {
  RequireOptions(x, options);
  DTensor y = x;
  for (int dim = 2; dim < x.ndim(); ++dim) {
    ResampleAttributes a = {.dim = dim, .mode = options.mode, .align_corners = options.align_corners};
    if (options.scale.empty()) {
      a.extent = options.size[dim - 2];
    } else {
      const double factor = options.scale[dim - 2];
      const double extent = std::floor(static_cast<double>(x.shape()[dim]) * factor);
      WEFT_REQUIRE(extent < 0x1p63, "Interpolate: a factor of ", factor, " makes dim ", dim, " of ",
                   x.ToString(), " longer than an extent can be");
      a.extent = static_cast<int64_t>(extent);
      // The mean of an area goes by the extents alone.
      if (options.mode != ResampleMode::kArea) a.scale = factor;
    }
    if (options.mode == ResampleMode::kLinear && a.extent == y.shape()[dim]) {
      // As PyTorch, which copies then, also where the factor is not 1.
      kResample.Infer({y.type()}, &a);  // for its errors
      continue;
    }
    y = Call(kResample, {y}, a);
  }
  return y;
}

}  // namespace weft
