#ifndef WEFT_OPS_NORMALIZATION_CHANNEL_TYPES_H_
#define WEFT_OPS_NORMALIZATION_CHANNEL_TYPES_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What channel_norm and its backward share: attributes, types and factors.

struct ChannelNormAttributes {
  // 0: batch norm, a mean and variance for each channel. Else group norm: the channels of each image in so
  // many groups, a mean and variance for each group.
  int64_t groups = 0;
  double eps = 1e-5;

  bool operator==(const ChannelNormAttributes&) const = default;
};

// The factors of x, of a vector by channel, and of a statistic. With `whole`, factors along which elements
// that share a statistic lie are whole.
struct ChannelFactors {
  std::string x;
  std::string channel;
  std::string statistic;
};
ChannelFactors ChannelFactorsOf(int ndim, const ChannelNormAttributes& attributes, bool whole);

// Types of a vector by channel and of a statistic of x.
TensorType ChannelVectorType(const TensorType& x);
TensorType ChannelStatisticType(const TensorType& x, const ChannelNormAttributes& attributes);

// Errors: InvalidArgument that starts with `op`, for shapes that do not fit, groups that do not divide c, or
//         a negative eps.
void RequireChannels(absl::string_view op, const TensorType& x, const ChannelNormAttributes& attributes);

}  // namespace weft

#endif  // WEFT_OPS_NORMALIZATION_CHANNEL_TYPES_H_
