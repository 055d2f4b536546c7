#ifndef WEFT_OPS_CUDA_CONVOLUTION_IMAGE_COLUMNS_H_
#define WEFT_OPS_CUDA_CONVOLUTION_IMAGE_COLUMNS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/convolution/conv.h"

namespace weft {

// Where the windows of a convolution lie in an image: plain numbers, as ops/cpu/convolution/image_columns.h,
// passed to kernels by value.
struct CudaImageWindows {
  int64_t channels = 0;  // of all groups
  int64_t image[2] = {0, 0};
  int64_t kernel[2] = {1, 1};
  int64_t output[2] = {0, 0};
  int64_t stride[2] = {1, 1};
  int64_t padding[2] = {0, 0};
  int64_t dilation[2] = {1, 1};

  __host__ __device__ int64_t image_size() const { return image[0] * image[1]; }
  __host__ __device__ int64_t kernel_size() const { return kernel[0] * kernel[1]; }
  __host__ __device__ int64_t num_pixels() const { return output[0] * output[1]; }
  // Whether every window is the pixel itself: the columns are the image.
  bool IsIdentity() const {
    return kernel_size() == 1 && stride[0] == 1 && stride[1] == 1 && padding[0] == 0 && padding[1] == 0;
  }
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_CONVOLUTION_IMAGE_COLUMNS_H_
