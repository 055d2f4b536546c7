#ifndef WEFT_OPS_CUDA_NORMALIZATION_CHANNEL_ROWS_H_
#define WEFT_OPS_CUDA_NORMALIZATION_CHANNEL_ROWS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "mesh/shard_math.h"
#include "ops/normalization/channel_norm.h"

namespace weft {

// Local x [n, c, ...] as rows, one for each image and channel, and which numbers belong to a row. A kernel's
// argument: passed by value.
struct ChannelRowsOnGpu {
  ChannelRowsOnGpu(const ChannelNormAttributes& a, const ShardBox& box)
      : n(box.shape[0]), c(box.shape[1]), offset(box.offset[1]), groups(a.groups), eps(a.eps) {
    int64_t global_elements = 1;
    for (int dim = 2; dim < box.shape.ndim(); ++dim) {
      elements *= box.shape[dim];
      global_elements *= box.global_shape[dim];
    }
    if (groups > 0) group_channels = box.global_shape[1] / groups;
    count = static_cast<double>(global_elements) *
            static_cast<double>(groups == 0 ? box.global_shape[0] : group_channels);
  }

  __host__ __device__ int64_t num_rows() const { return n * c; }
  __host__ __device__ int64_t num_statistics() const { return groups == 0 ? c : n * groups; }
  __device__ int64_t Channel(int64_t row) const { return row % c; }
  __device__ int64_t Statistic(int64_t row) const {
    return groups == 0 ? row % c : row / c * groups + (offset + row % c) / group_channels;
  }

  // The rows of a statistic: `num` of them from `first`, `step` apart. None of a group that other pieces
  // hold.
  struct Rows {
    int64_t first;
    int64_t step;
    int64_t num;
  };
  __device__ Rows RowsOf(int64_t statistic) const {
    if (groups == 0) return {statistic, c, n};
    const int64_t begin = statistic % groups * group_channels - offset;
    const int64_t first = std::max<int64_t>(0, begin);
    const int64_t num = std::max<int64_t>(0, std::min(c, begin + group_channels) - first);
    return {statistic / groups * c + first, 1, num};
  }

  int64_t n;
  int64_t c;
  int64_t elements = 1;  // of a row
  int64_t offset;        // of the first local channel
  int64_t groups;
  int64_t group_channels = 1;
  double count = 0;  // elements that share a statistic, in the global tensor
  double eps;
};

}  // namespace weft

#endif  // WEFT_OPS_CUDA_NORMALIZATION_CHANNEL_ROWS_H_
