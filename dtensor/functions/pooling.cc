#include "dtensor/functions/pooling.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/reduce.h"
#include "dtensor/functions/shape.h"
#include "ops/convolution/pool.h"
#include "ops/convolution/resample.h"

namespace weft {
namespace {

PoolAttributes AttributesOf(const Pool2dOptions& options) {
  PoolAttributes a = {.kernel = options.kernel,
                      .stride = options.stride,
                      .padding = options.padding,
                      .dilation = options.dilation,
                      .ceil_mode = options.ceil_mode,
                      .count_padding = options.count_padding};
  for (int i : {0, 1}) {
    if (a.stride[i] == 0) a.stride[i] = a.kernel[i];
  }
  return a;
}

// One row of pixels.
Pool2dOptions AsRows(const Pool1dOptions& options) {
  return {.kernel = {1, options.kernel},
          .stride = {1, options.stride},
          .padding = {0, options.padding},
          .dilation = {1, options.dilation},
          .ceil_mode = options.ceil_mode,
          .count_padding = options.count_padding};
}

DTensor AsImage(const DTensor& x, absl::string_view what) {
  WEFT_REQUIRE(x.ndim() == 3, what, ": expected x [n, c, l], got ", x.ToString());
  return Reshape(x, {x.shape()[0], x.shape()[1], 1, x.shape()[2]});
}

void RequireExtent(absl::string_view what, int64_t extent, const DTensor& x, int dim) {
  WEFT_REQUIRE(extent >= 1 && x.shape()[dim] >= 1, what, ": expected extents of at least 1, got ", extent,
               " of ", x.ToString());
}

DTensor WithoutRows(const DTensor& y) { return Reshape(y, {y.shape()[0], y.shape()[1], y.shape()[3]}); }

}  // namespace

DTensor MaxPool1d(const DTensor& x, const Pool1dOptions& options) {
  return WithoutRows(MaxPool2d(AsImage(x, "MaxPool1d"), AsRows(options)));
}

DTensor MaxPool2d(const DTensor& x, const Pool2dOptions& options) {
  return Call(kMaxPool, {x}, AttributesOf(options));
}

DTensor AvgPool1d(const DTensor& x, const Pool1dOptions& options) {
  return WithoutRows(AvgPool2d(AsImage(x, "AvgPool1d"), AsRows(options)));
}

DTensor AvgPool2d(const DTensor& x, const Pool2dOptions& options) {
  return Call(kAvgPool, {x}, AttributesOf(options));
}

DTensor AdaptiveAvgPool1d(const DTensor& x, int64_t extent) {
  const DTensor image = AsImage(x, "AdaptiveAvgPool1d");
  RequireExtent("AdaptiveAvgPool1d", extent, x, /*dim=*/2);
  return WithoutRows(AdaptiveAvgPool2d(image, {1, extent}));
}

DTensor AdaptiveAvgPool2d(const DTensor& x, const std::array<int64_t, 2>& extents) {
  WEFT_REQUIRE(x.ndim() == 4, "AdaptiveAvgPool2d: expected x [n, c, h, w], got ", x.ToString());
  DTensor y = x;
  for (const int i : {0, 1}) {
    const int dim = 2 + i;
    RequireExtent("AdaptiveAvgPool2d", extents[i], x, dim);
    if (extents[i] == 1) {
      y = Mean(y, {dim}, /*keep_dims=*/true);
    } else if (extents[i] != x.shape()[dim]) {
      // The means that resampling takes: windows that overlap where the extents do not divide.
      y = Call(kResample, {y}, {.dim = dim, .extent = extents[i], .mode = ResampleMode::kArea});
    }
  }
  return y;
}

}  // namespace weft
