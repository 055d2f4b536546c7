#ifndef WEFT_OPS_CONVOLUTION_CONV_H_
#define WEFT_OPS_CONVOLUTION_CONV_H_

#include <array>
#include <cstdint>

#include "ops/op/op.h"

namespace weft {

// Of rows and of columns.
using SpatialPair = std::array<int64_t, 2>;

struct ConvAttributes {
  SpatialPair stride = {1, 1};
  SpatialPair padding = {0, 0};  // zeros on either side
  SpatialPair dilation = {1, 1};
  int64_t groups = 1;

  bool operator==(const ConvAttributes&) const = default;
};

// y[n, o, p, q] = b[o] + sum over c, i, j of w[o, c, i, j] x[n, c, p * stride + i * dilation - padding, ...]:
// a cross-correlation, as every framework's convolution. Group g of the outputs sees group g of the channels.
//
// Shape:  x [n, c, h, w], w [o, c / groups, kh, kw], b [o], one floating type -> y [n, o, p, q] with p = (h +
//         2 padding - dilation (kh - 1) - 1) / stride + 1. bf16 and f16 compute in f32, round once.
// Layout: n and o may be split, and c, which gives Partial(sum), b added once; with groups only n, and for
//         one channel a group (c = o = groups) c. Rows and columns are whole: no halo is exchanged.
// Errors: InvalidArgument for shapes that do not fit, or a kernel larger than the padded image.
extern const Op<ConvAttributes> kConv;

struct ConvGradAttributes {
  ConvAttributes conv;
  SpatialPair extents = {0, 0};  // of the result's last two dims: of x, or of w

  bool operator==(const ConvGradAttributes&) const = default;
};

// dy [n, o, p, q], w -> dx [n, c, h, w].
extern const Op<ConvGradAttributes> kConvDataGrad;
// x, dy -> dw [o, c / groups, kh, kw].
extern const Op<ConvGradAttributes> kConvWeightGrad;

// The extents of y's rows and columns.
// Errors: InvalidArgument as above.
SpatialPair ConvOutputExtents(const SpatialPair& image, const SpatialPair& kernel, const ConvAttributes& a);

}  // namespace weft

#endif  // WEFT_OPS_CONVOLUTION_CONV_H_
