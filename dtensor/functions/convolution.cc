#include "dtensor/functions/convolution.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/shape.h"
#include "ops/convolution/conv.h"

namespace weft {

DTensor Conv1d(const DTensor& x, const DTensor& weight, const DTensor& bias, const Conv1dOptions& options) {
  WEFT_REQUIRE(x.ndim() == 3 && weight.ndim() == 3,
               "Conv1d: expected x [n, c, l] and weight [o, c / groups, k], got ", x.ToString(), " and ",
               weight.ToString());
  // One row of pixels.
  const auto as_image = [](const DTensor& t) {
    return Reshape(t, {t.shape()[0], t.shape()[1], 1, t.shape()[2]});
  };
  const DTensor y = Conv2d(as_image(x), as_image(weight), bias,
                           {.stride = {1, options.stride},
                            .padding = {0, options.padding},
                            .dilation = {1, options.dilation},
                            .groups = options.groups});
  return Reshape(y, {y.shape()[0], y.shape()[1], y.shape()[3]});
}

DTensor Conv2d(const DTensor& x, const DTensor& weight, const DTensor& bias, const Conv2dOptions& options) {
  WEFT_REQUIRE(x.ndim() == 4 && weight.ndim() == 4,
               "Conv2d: expected x [n, c, h, w] and weight [o, c / groups, kh, kw], got ", x.ToString(),
               " and ", weight.ToString());
  if (Autocasts(x)) [[unlikely]] {
    const DTensor operands[] = {AutocastToProduct(x), AutocastToProduct(weight), AutocastToProduct(bias)};
    const AutocastGuard off(x.context()->state(), std::nullopt);
    return Conv2d(operands[0], operands[1], operands[2], options);
  }
  const DTensor b = bias.defined() ? bias : Full(x.context(), x.dtype(), {weight.shape()[0]}, 0);
  return Call(kConv, {x, weight, b},
              {.stride = options.stride,
               .padding = options.padding,
               .dilation = options.dilation,
               .groups = options.groups});
}

}  // namespace weft
