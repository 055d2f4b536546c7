#ifndef WEFT_DTENSOR_FUNCTIONS_CONVOLUTION_H_
#define WEFT_DTENSOR_FUNCTIONS_CONVOLUTION_H_

#include <array>
#include <cstdint>

#include "dtensor/dtensor.h"

// Convolutions (cross-correlations, as PyTorch's).
// Layout: the batch, outputs and input channels may be split (the last gives Partial(sum), the bias added
//         once); rows and columns are whole: no halo is exchanged. With groups the batch, and the channels
//         where each is a group of its own.
// Cost:   no communication where only those are split; rows and columns are gathered.
// Errors: InvalidArgument for shapes that do not fit, dtypes that differ or are not floating, groups that do not divide the
//         channels, or a kernel larger than the padded image.
namespace weft {

struct Conv1dOptions {
  int64_t stride = 1;
  int64_t padding = 0;  // zeros on either side
  int64_t dilation = 1;
  int64_t groups = 1;
};
// x [n, c, l], weight [o, c / groups, k], bias [o] or undefined -> [n, o, (l + 2 padding - dilation (k - 1) -
// 1) / stride + 1].
DTensor Conv1d(const DTensor& x, const DTensor& weight, const DTensor& bias = {},
               const Conv1dOptions& options = {});

struct Conv2dOptions {
  std::array<int64_t, 2> stride = {1, 1};  // of rows, of columns
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};
  int64_t groups = 1;
};
// x [n, c, h, w], weight [o, c / groups, kh, kw], bias [o] or undefined -> [n, o, p, q].
DTensor Conv2d(const DTensor& x, const DTensor& weight, const DTensor& bias = {},
               const Conv2dOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_CONVOLUTION_H_
