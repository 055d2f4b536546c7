#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/cuda/blocks/reduce_block.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/optimizer/update_elements.h"
#include "ops/op/kernel.h"
#include "ops/optimizer/block_piece.h"
#include "ops/optimizer/block_quantize.h"
#include "ops/optimizer/dynamic_map.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A thread block takes a block of 256 elements, of which each thread finds its own in the piece: whatever
// the layout, and with one reduction for the magnitude. Tables go by value among the kernel's parameters and
// are copied to shared memory, since codes differ between threads.

constexpr int kThreads = static_cast<int>(kBlockElements);

// The blocks of a piece, one after the other, over the grid. `function(scale, index)` is called by every
// thread for every block; `index` is of this thread's element in the piece, or -1.
template <class Function>
__device__ void ForEachBlock(const BlockPiece& piece, const Function& function) {
  for (int64_t scale = blockIdx.x; scale < piece.rows * piece.blocks; scale += gridDim.x) {
    const int64_t i = scale % piece.blocks * kBlockElements + threadIdx.x;
    const int64_t found = i < piece.row_elements ? piece.Find(i) : -1;
    function(scale, found < 0 ? found : scale / piece.blocks * piece.piece_elements + found);
  }
}

CudaGrid GridOf(const BlockPiece& piece) {
  constexpr int64_t kMostBlocks = 65535;
  return {.blocks = static_cast<int>(std::min(piece.rows * piece.blocks, kMostBlocks)), .threads = kThreads};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    DequantizeKernel(const BlockPiece piece, const DynamicMap map, const uint8_t* codes, const float* scales,
                     T* x) {
  __shared__ float values[kThreads];
  values[threadIdx.x] = map[threadIdx.x];
  __syncthreads();
  ForEachBlock(piece, [&](int64_t scale, int64_t i) {
    if (i >= 0) x[i] = ConvertElement<T>(values[codes[i]] * scales[scale]);
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    MagnitudesKernel(const BlockPiece piece, const T* x, float* scales) {
  __shared__ float scratch[kMostWarps];
  ForEachBlock(piece, [&](int64_t scale, int64_t i) {
    const float own = i >= 0 ? std::abs(ConvertElement<float>(x[i])) : 0.0f;
    const float largest = ReduceBlock(own, MaxOfValues(), scratch);
    if (threadIdx.x == 0) scales[scale] = largest;
  });
}

using Thresholds = std::array<float, 255>;

__global__ void __launch_bounds__(kThreads)
    QuantizeKernel(const BlockPiece piece, const Thresholds thresholds, const float* x, const float* scales,
                   DeviceScalar s, uint8_t* codes) {
  __shared__ float between[kThreads];
  const double skip = s.Get();
  if (skip - skip != 0) return;
  if (threadIdx.x < thresholds.size()) between[threadIdx.x] = thresholds[threadIdx.x];
  __syncthreads();
  ForEachBlock(piece, [&](int64_t scale, int64_t i) {
    if (i < 0) return;
    const float by = scales[scale];
    codes[i] = static_cast<uint8_t>(NearestCode(between, by > 0 ? x[i] / by : 0.0f));
  });
}

// Writes y = x, unless s is not finite.
struct CopyUnlessSkipped {
  DeviceScalar s;

  __device__ bool Skips() const {
    const double skip = s.Get();
    return skip - skip != 0;
  }
  __device__ void operator()(float& y, float x) const { y = x; }
};

void Dequantize(const KernelCall<DequantizeAttributes, NoScalars>& call) {
  const BlockPiece piece = BlockPieceOf(call.input_boxes[0]);
  CheckBlockElements(piece, call.outputs[0]);
  CheckBlockScales(piece, call.inputs[1]);
  if (call.outputs[0].num_elements() == 0) return;
  const Tensor q = PackedTensor(call.inputs[0], call.context);
  const Tensor a = PackedTensor(call.inputs[1], call.context);
  VisitFloating(call.attributes().dtype, "dequantize_blocks", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOf(piece), DequantizeKernel<T>, piece,
               MakeDynamicMap(call.attributes().is_signed), q.data<uint8_t>(), a.data<float>(),
               call.outputs[0].data<T>());
  });
}

void Magnitudes(const KernelCall<NoAttributes, NoScalars>& call) {
  const BlockPiece piece = BlockPieceOf(call.input_boxes[0]);
  CheckBlockScales(piece, call.outputs[0]);
  if (call.outputs[0].num_elements() == 0) return;
  const Tensor x = PackedTensor(call.inputs[0], call.context);
  VisitFloating(x.dtype(), "block_magnitudes", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOf(piece), MagnitudesKernel<T>, piece, x.data<T>(),
               call.outputs[0].data<float>());
  });
}

void Quantize(const KernelCall<QuantizeAttributes, NoScalars>& call) {
  const BlockPiece piece = BlockPieceOf(call.input_boxes[0]);
  CheckBlockElements(piece, call.inputs[2]);
  CheckBlockScales(piece, call.inputs[3]);
  if (call.outputs[1].num_elements() == 0) return;
  const Tensor x = PackedTensor(call.inputs[2], DType::kF32, call.context);
  const Tensor a = PackedTensor(call.inputs[3], call.context);
  const DeviceScalar s(call.inputs[4]);
  if (x.num_elements() > 0) {
    const Tensor q = PackedTensor(call.outputs[0], call.context);
    LaunchCuda(KernelStream(call), GridOf(piece), QuantizeKernel, piece,
               MakeThresholds(MakeDynamicMap(call.attributes().is_signed)), x.data<float>(), a.data<float>(),
               s, q.data<uint8_t>());
    if (q.data() != call.outputs[0].data()) CopyTensor(q, call.outputs[0]);
  }
  MapOperands(KernelStream(call), call.outputs[1].shape(), CopyUnlessSkipped{s},
              Updates<float>{call.outputs[1]}, Reads<float>{call.inputs[3]});
}

const RegisterKernel kRegister[] = {
    {kDequantizeBlocks, DeviceType::kCuda, Dequantize},
    {kBlockMagnitudes, DeviceType::kCuda, Magnitudes},
    {kQuantizeBlocks, DeviceType::kCuda, Quantize},
};

}  // namespace
}  // namespace weft
