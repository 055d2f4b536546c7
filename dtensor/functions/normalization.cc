#include "dtensor/functions/normalization.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/elementwise.h"
#include "ops/normalization/channel_norm.h"
#include "ops/normalization/layer_norm.h"
#include "ops/normalization/rms_norm.h"

namespace weft {
namespace {

// `vector`, or `value` for each channel of x.
DTensor ByChannel(const DTensor& vector, const DTensor& x, double value, absl::string_view what) {
  WEFT_REQUIRE(x.ndim() >= 2, what, ": expected x [n, c, ...], got ", x.ToString());
  return vector.defined() ? vector : Full(x.context(), x.dtype(), {x.shape()[1]}, value);
}

}  // namespace

DTensor LayerNormalize(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps) {
  if (Autocasts(x)) [[unlikely]] {
    return Call(kLayerNorm, {AutocastToSingle(x), AutocastToSingle(weight), AutocastToSingle(bias)},
                {.eps = eps});
  }
  return Call(kLayerNorm, {x, weight, bias}, {.eps = eps});
}

DTensor RmsNormalize(const DTensor& x, const DTensor& weight, double eps) {
  if (Autocasts(x)) [[unlikely]] {
    return Call(kRmsNorm, {AutocastToSingle(x), AutocastToSingle(weight)}, {.eps = eps});
  }
  return Call(kRmsNorm, {x, weight}, {.eps = eps});
}

BatchNormResult BatchNormalize(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps) {
  if (Autocasts(x)) [[unlikely]] {
    const DTensor operands[] = {AutocastToSingle(x), AutocastToSingle(weight), AutocastToSingle(bias)};
    const AutocastGuard off(x.context()->state(), std::nullopt);
    return BatchNormalize(operands[0], operands[1], operands[2], eps);
  }
  constexpr char kName[] = "BatchNormalize";
  const DTensors outputs =
      CallAll(kChannelNorm, {x, ByChannel(weight, x, 1, kName), ByChannel(bias, x, 0, kName)},
              {.groups = 0, .eps = eps});
  return {.y = outputs[0], .mean = outputs[1].Detach(), .variance = outputs[2].Detach()};
}

DTensor BatchNormalizeBy(const DTensor& x, const DTensor& mean, const DTensor& variance,
                         const DTensor& weight, const DTensor& bias, double eps) {
  if (Autocasts(x)) [[unlikely]] {
    const DTensor operands[] = {AutocastToSingle(x), AutocastToSingle(mean), AutocastToSingle(variance),
                                AutocastToSingle(weight), AutocastToSingle(bias)};
    const AutocastGuard off(x.context()->state(), std::nullopt);
    return BatchNormalizeBy(operands[0], operands[1], operands[2], operands[3], operands[4], eps);
  }
  constexpr char kName[] = "BatchNormalizeBy";
  return Call(kChannelNormApply,
              {x, ByChannel(weight, x, 1, kName), ByChannel(bias, x, 0, kName), mean, variance},
              {.groups = 0, .eps = eps});
}

RunningStatistics RunningStatistics::Updated(const BatchNormResult& batch, double momentum) const {
  const NoGradGuard no_grad(batch.y.context()->state());
  const Shape& shape = batch.y.shape();
  const double count = static_cast<double>(shape.num_elements()) / static_cast<double>(shape[1]);
  const double unbiased = count > 1 ? count / (count - 1) : 1;
  return {.mean = mean * (1 - momentum) + batch.mean * momentum,
          .variance = variance * (1 - momentum) + batch.variance * (momentum * unbiased)};
}

DTensor GroupNormalize(const DTensor& x, int64_t groups, const DTensor& weight, const DTensor& bias,
                       double eps) {
  if (Autocasts(x)) [[unlikely]] {
    const DTensor operands[] = {AutocastToSingle(x), AutocastToSingle(weight), AutocastToSingle(bias)};
    const AutocastGuard off(x.context()->state(), std::nullopt);
    return GroupNormalize(operands[0], groups, operands[1], operands[2], eps);
  }
  constexpr char kName[] = "GroupNormalize";
  WEFT_REQUIRE(groups > 0, kName, ": expected at least one group, got ", groups);
  return Call(kChannelNorm, {x, ByChannel(weight, x, 1, kName), ByChannel(bias, x, 0, kName)},
              {.groups = groups, .eps = eps});
}

}  // namespace weft
