// Reductions over the threads of a warp and of a block.

#ifndef WEFT_OPS_CUDA_BLOCKS_REDUCE_BLOCK_H_
#define WEFT_OPS_CUDA_BLOCKS_REDUCE_BLOCK_H_

#include <cuda_runtime.h>

namespace weft {

inline constexpr int kWarpSize = 32;
inline constexpr int kMostWarps = 32;  // a block

struct AddValues {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

// NaN wins.
struct MaxOfValues {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b || a != a ? a : b;
  }
};

// Every lane of the warp gets the reduction of all 32 lanes' values, in one order; all of them call it.
// `combine` is commutative, and associative but for rounding.
template <class T, class Combine>
__device__ T ReduceWarp(T value, const Combine& combine) {
#pragma unroll
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, mask));
  }
  return value;
}

// Every thread of the block gets the reduction of all threads' values, in an order that follows from the
// block's extent. All threads call it; blocks are one-dimensional, of whole warps. `scratch`: kMostWarps
// values in shared memory, free again when it returns.
template <class T, class Combine>
__device__ T ReduceBlock(T value, const Combine& combine, T* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int num_warps = static_cast<int>(blockDim.x) / kWarpSize;
  value = ReduceWarp(value, combine);
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  // Each thread adds the warps' values, at most 32, in their order. All read the same word at a time, which costs one read.
  // If one thread added them for all, the others would have to wait at another barrier.
  T total = scratch[0];
  for (int i = 1; i < num_warps; ++i) total = combine(total, scratch[i]);
  // Until all have read them, nobody may use `scratch` again.
  __syncthreads();
  return total;
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_REDUCE_BLOCK_H_
