#ifndef WEFT_DTENSOR_FUNCTIONS_POOLING_H_
#define WEFT_DTENSOR_FUNCTIONS_POOLING_H_

#include <array>
#include <cstdint>

#include "dtensor/dtensor.h"

// Maxima and means of windows, as PyTorch's.
// Layout: the batch and channels may be split; rows and columns are whole: no halo is exchanged.
// Cost:   no communication where only those are split; rows and columns are gathered.
// Errors: InvalidArgument for another number of dims, a dtype that is not floating, a padding over half of the kernel, or a kernel
//         larger than the padded image (with ceil_mode, by a stride or more).
namespace weft {

// A stride of 0 stands for the kernel's extent: windows side by side.
struct Pool1dOptions {
  int64_t kernel = 1;
  int64_t stride = 0;
  int64_t padding = 0;        // at most half of the kernel
  int64_t dilation = 1;       // maxima only
  bool ceil_mode = false;     // a last window may reach beyond the padding
  bool count_padding = true;  // means divide by the whole window, padding included
};
struct Pool2dOptions {
  std::array<int64_t, 2> kernel = {1, 1};  // of rows, of columns
  std::array<int64_t, 2> stride = {0, 0};
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};
  bool ceil_mode = false;
  bool count_padding = true;
};

// x [n, c, l] -> [n, c, p]; x [n, c, h, w] -> [n, c, p, q]. Of equal maxima the first takes the gradient.
DTensor MaxPool1d(const DTensor& x, const Pool1dOptions& options);
DTensor MaxPool2d(const DTensor& x, const Pool2dOptions& options);
DTensor AvgPool1d(const DTensor& x, const Pool1dOptions& options);
DTensor AvgPool2d(const DTensor& x, const Pool2dOptions& options);

// Means of as many windows as are asked for: window i of p over l elements holds those from floor(i l / p) up to
// ceil((i + 1) l / p). Of one window the mean of all: an image's channels as numbers. An inf or nan shows only in the windows
// that hold it.
// Layout: rows and columns may be split: each rank adds up what it holds, which leaves a Partial(sum).
// Cost:   no communication; a Partial is reduced where it is read.
// Errors: InvalidArgument for an extent below 1.
DTensor AdaptiveAvgPool1d(const DTensor& x, int64_t extent);
DTensor AdaptiveAvgPool2d(const DTensor& x, const std::array<int64_t, 2>& extents);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_POOLING_H_
