#ifndef WEFT_OPS_CONVOLUTION_POOL_H_
#define WEFT_OPS_CONVOLUTION_POOL_H_

#include <array>
#include <cstdint>

#include "ops/op/op.h"

namespace weft {

// Windows over the rows and columns of images [n, c, h, w].
struct PoolAttributes {
  std::array<int64_t, 2> kernel = {1, 1};
  std::array<int64_t, 2> stride = {1, 1};
  std::array<int64_t, 2> padding = {0, 0};   // at most half of the kernel
  std::array<int64_t, 2> dilation = {1, 1};  // max_pool only
  bool ceil_mode = false;                    // a last window may reach beyond the padding, not start there
  bool count_padding = true;                 // avg_pool divides by the whole window, padding included

  bool operator==(const PoolAttributes&) const = default;
};

struct PoolGradAttributes {
  PoolAttributes pool;
  std::array<int64_t, 2> extents = {0, 0};  // of the images

  bool operator==(const PoolGradAttributes&) const = default;
};

// y = the maximum of each window, and index = where it stands in its image, row * w + column. Of equal ones
// the first; NaN wins, the last of several, as in PyTorch.
//
// Shape:  x [n, c, h, w] floating -> y [n, c, p, q], index i64 alike.
// Layout: n and c may be split; rows and columns are whole: no halo is exchanged.
// Errors: InvalidArgument for a padding over half of the kernel, or a kernel larger than the padded image, with ceil_mode by a
//         stride or more.
extern const Op<PoolAttributes> kMaxPool;
// index dy -> dx: each element to where its maximum came from.
extern const Op<PoolGradAttributes> kMaxPoolGrad;

// y = the mean of each window: its sum over the number of its elements inside the image, or inside the padded
// image with count_padding. Layout and Errors: as kMaxPool.
extern const Op<PoolAttributes> kAvgPool;
// dy -> dx.
extern const Op<PoolGradAttributes> kAvgPoolGrad;

// The extents of y's rows and columns.
// Errors: InvalidArgument that starts with `op`.
std::array<int64_t, 2> PoolOutputExtents(absl::string_view op, const std::array<int64_t, 2>& image,
                                         const PoolAttributes& a);

}  // namespace weft

#endif  // WEFT_OPS_CONVOLUTION_POOL_H_
