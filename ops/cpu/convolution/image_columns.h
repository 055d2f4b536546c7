#ifndef WEFT_OPS_CPU_CONVOLUTION_IMAGE_COLUMNS_H_
#define WEFT_OPS_CPU_CONVOLUTION_IMAGE_COLUMNS_H_

#include <cstdint>

#include "ops/convolution/conv.h"

namespace weft {

// Where the windows of a convolution lie in an image: plain numbers.
struct ImageWindows {
  SpatialPair image = {0, 0};
  SpatialPair kernel = {1, 1};
  SpatialPair output = {0, 0};
  SpatialPair stride = {1, 1};
  SpatialPair padding = {0, 0};
  SpatialPair dilation = {1, 1};

  int64_t image_size() const { return image[0] * image[1]; }
  int64_t kernel_size() const { return kernel[0] * kernel[1]; }
  int64_t num_pixels() const { return output[0] * output[1]; }
  // Whether every window is the pixel itself: the columns are the image.
  bool IsIdentity() const {
    return kernel_size() == 1 && stride == SpatialPair{1, 1} && padding == SpatialPair{0, 0};
  }
};

// Output pixels [begin, end), row-major.
struct PixelRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// columns[(c, i, j), pixel] = the element of channel c that kernel element (i, j) meets at the pixel, 0 in
// the padding. `image` is [channels, h, w] and columns [channels * kernel_size, pixels.size()], row-major.
template <class T>
void GatherColumns(const ImageWindows& windows, const T* image, int64_t channels, const PixelRange& pixels,
                   T* columns);

// The transpose: adds each column element to the image element that it came from.
template <class T>
void ScatterColumns(const ImageWindows& windows, const T* columns, int64_t channels, const PixelRange& pixels,
                    T* image);

}  // namespace weft

#endif  // WEFT_OPS_CPU_CONVOLUTION_IMAGE_COLUMNS_H_
