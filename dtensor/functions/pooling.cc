#include "dtensor/functions/pooling.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/shape.h"
#include "ops/convolution/pool.h"

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

}  // namespace weft
