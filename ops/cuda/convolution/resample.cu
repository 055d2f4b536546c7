#include <cuda_runtime.h>

#include <algorithm>

#include "ops/convolution/resample.h"
#include "ops/convolution/resample_weights.h"
#include "ops/cuda/blocks/indices.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/row_pack.h"
#include "ops/op/absent.h"
#include "ops/op/kernel.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

using Call = KernelCall<ResampleAttributes, NoScalars>;

struct ResampleExtents {
  int64_t inner = 1;
  int64_t length = 0;  // of the piece of the result along the dim
  int64_t first = 0;   // its offset
  int64_t x_length = 0;
  int64_t x_first = 0;
};

// An element per thread, which works its weights out by itself: a band is a few places, and its transpose is
// found by bisection, so no table goes to the device and nothing is scattered.
template <class T, bool kTranspose>
__global__ void ResampleKernel(ResampleWeights weights, ResampleExtents n, const T* x, T* y, int64_t count) {
  using C = WideOf<T>;
  ForEachOfGrid(count, [&](int64_t at) {
    const int64_t row = at / n.inner;
    const int64_t block = row / n.length;
    const int64_t i = row - block * n.length + n.first;
    const ResampleWeights::Band band = kTranspose ? weights.Column(i) : weights.Row(i);
    const int64_t begin = band.first > n.x_first ? band.first : n.x_first;
    const int64_t end = band.last < n.x_first + n.x_length - 1 ? band.last : n.x_first + n.x_length - 1;
    const T* const from = x + block * n.x_length * n.inner + (at - row * n.inner);
    // No row is without weights, but columns are: those that a coarser result passes over.
    double sum = kTranspose && n.x_first == 0 ? 0.0 : kAbsent;
    bool first = true;
    for (int64_t j = begin; j <= end; ++j) {
      const double weight = kTranspose ? weights.Weight(j, i) : weights.Weight(i, j);
      if (weight == 0) continue;
      const double term = weight * static_cast<double>(static_cast<C>(from[(j - n.x_first) * n.inner]));
      sum = first ? term : sum + term;
      first = false;
    }
    y[at] = ConvertElement<T>(static_cast<C>(sum));
  });
}

template <bool kTranspose>
void ResampleWith(const Call& call, const ResampleWeights& weights) {
  const int dim = call.attributes().dim;
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const Tensor x = CudaDense(call.inputs[0], call.context.allocator);
  ResampleExtents n;
  for (int d = dim + 1; d < y.ndim(); ++d) n.inner *= y.shape()[d];
  n.length = y.shape()[dim];
  n.first = call.output_boxes[0].offset[dim];
  n.x_length = x.shape()[dim];
  n.x_first = call.input_boxes[0].offset[dim];
  VisitFloating(y.dtype(), "resample", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(y.num_elements()), ResampleKernel<T, kTranspose>, weights, n,
               x.data<T>(), y.data<T>(), y.num_elements());
  });
}

void Resample(const Call& call) {
  const ResampleAttributes& a = call.attributes();
  ResampleWith</*kTranspose=*/false>(
      call, MakeResampleWeights(a, call.input_boxes[0].global_shape[a.dim], a.extent));
}

void ResampleGrad(const Call& call) {
  const ResampleAttributes& a = call.attributes();
  ResampleWith</*kTranspose=*/true>(
      call, MakeResampleWeights(a, a.extent, call.input_boxes[0].global_shape[a.dim]));
}

const RegisterKernel kRegister(kResample, DeviceType::kCuda, Resample);
const RegisterKernel kRegisterGrad(kResampleGrad, DeviceType::kCuda, ResampleGrad);

}  // namespace
}  // namespace weft
