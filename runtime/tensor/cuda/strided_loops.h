#ifndef WEFT_RUNTIME_TENSOR_CUDA_STRIDED_LOOPS_H_
#define WEFT_RUNTIME_TENSOR_CUDA_STRIDED_LOOPS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/types/span.h"
#include "runtime/tensor/shape.h"

namespace weft {

// Finds element `index`, counted row-major over the extents, in kOperands strided arrays at once. A kernel's
// argument: passed by value.
template <int kOperands>
struct StridedLoops {
  int num_loops = 0;
  bool is_small = false;  // every offset and index fits 32 bits, where division is several times quicker
  int64_t count = 0;
  int64_t extents[Shape::kMaxDims] = {};  // outermost first
  int64_t strides[kOperands][Shape::kMaxDims] = {};

  // In elements.
  __host__ __device__ void Offsets(int64_t index, int64_t (&offsets)[kOperands]) const {
    if (is_small) {
      Walk<uint32_t>(static_cast<uint32_t>(index), offsets);
    } else {
      Walk<uint64_t>(static_cast<uint64_t>(index), offsets);
    }
  }

 private:
  template <class Index>
  __host__ __device__ void Walk(Index rest, int64_t (&offsets)[kOperands]) const {
    Index sums[kOperands] = {};
#pragma unroll
    for (int loop = Shape::kMaxDims - 1; loop >= 0; --loop) {
      if (loop >= num_loops) continue;
      const Index extent = static_cast<Index>(extents[loop]);
      const Index quotient = rest / extent;
      const Index at = rest - quotient * extent;
      rest = quotient;
#pragma unroll
      for (int operand = 0; operand < kOperands; ++operand) {
        sums[operand] += at * static_cast<Index>(strides[operand][loop]);
      }
    }
#pragma unroll
    for (int operand = 0; operand < kOperands; ++operand)
      offsets[operand] = static_cast<int64_t>(sums[operand]);
  }
};

// Over `shape`, dims of extent 1 dropped and neighbours merged wherever all operands allow it; strides of 0
// repeat. The order of the dims stays.
template <int kOperands>
StridedLoops<kOperands> MakeStridedLoops(const Shape& shape, const Shape (&strides)[kOperands]) {
  StridedLoops<kOperands> loops;
  loops.count = shape.num_elements();
  int64_t largest = loops.count;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (shape[dim] == 1) continue;
    bool merges = loops.num_loops > 0;
    for (int operand = 0; operand < kOperands && merges; ++operand) {
      merges = loops.strides[operand][loops.num_loops - 1] == strides[operand][dim] * shape[dim];
    }
    if (!merges) ++loops.num_loops;
    const int loop = loops.num_loops - 1;
    loops.extents[loop] = merges ? loops.extents[loop] * shape[dim] : shape[dim];
    for (int operand = 0; operand < kOperands; ++operand)
      loops.strides[operand][loop] = strides[operand][dim];
  }
  for (int operand = 0; operand < kOperands; ++operand) {
    int64_t reach = 1;
    for (int loop = 0; loop < loops.num_loops; ++loop) {
      reach += (loops.extents[loop] - 1) * loops.strides[operand][loop];
    }
    if (reach > largest) largest = reach;
  }
  loops.is_small = largest <= int64_t{0x7fffffff};
  return loops;
}

// True if the operand's elements lie one after the other in the loops' order.
template <int kOperands>
bool IsContiguousIn(const StridedLoops<kOperands>& loops, int operand) {
  return loops.num_loops == 0 || (loops.num_loops == 1 && loops.strides[operand][0] == 1);
}

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_CUDA_STRIDED_LOOPS_H_
