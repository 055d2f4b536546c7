#include "ops/normalization/channel_types.h"

#include "absl/strings/str_cat.h"
#include "ops/declare/row_op.h"
#include "runtime/base/error.h"

namespace weft {

ChannelFactors ChannelFactorsOf(int ndim, const ChannelNormAttributes& attributes, bool whole) {
  const bool batch = attributes.groups == 0;
  const char* const shared = whole ? "!" : "";
  ChannelFactors f;
  f.channel = absl::StrCat("c", batch ? "" : shared);
  f.x = absl::StrCat("n", batch ? shared : "", " ", f.channel);
  for (int dim = 2; dim < ndim; ++dim) absl::StrAppend(&f.x, " s", dim, shared);
  f.statistic = batch ? "c" : "n 1";
  return f;
}

TensorType ChannelVectorType(const TensorType& x) { return {x.dtype, {x.shape[1]}}; }

TensorType ChannelStatisticType(const TensorType& x, const ChannelNormAttributes& attributes) {
  const DType dtype = StatisticDType(x.dtype);
  if (attributes.groups == 0) return {dtype, {x.shape[1]}};
  return {dtype, {x.shape[0], attributes.groups}};
}

void RequireChannels(absl::string_view op, const TensorType& x, const ChannelNormAttributes& attributes) {
  WEFT_REQUIRE(IsFloating(x.dtype) && x.ndim() >= 2, op, ": expected a floating x [n, c, ...], got ",
               x.ToString());
  WEFT_REQUIRE(attributes.groups >= 0 && (attributes.groups == 0 || x.shape[1] % attributes.groups == 0), op,
               ": ", attributes.groups, " groups do not divide the ", x.shape[1], " channels of x ",
               x.ToString());
  WEFT_REQUIRE(attributes.eps >= 0, op, ": eps must not be negative, got ", attributes.eps);
}

}  // namespace weft
