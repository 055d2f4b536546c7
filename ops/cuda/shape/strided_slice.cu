#include <cuda_runtime.h>

#include "ops/cuda/blocks/indices.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/shape/rearranged.h"
#include "ops/op/kernel.h"
#include "ops/shape/dim_source.h"
#include "ops/shape/strided_slice.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/cuda/grid_loop.h"
#include "runtime/tensor/cuda/visit_word.h"

namespace weft {
namespace {

using Call = KernelCall<StridedSliceAttributes, NoScalars>;

void StridedSlice(const Call& call) {
  CudaCopyRearranged(call, StridedSliceRearrangement(call.attributes(), call.input_boxes[0]));
}

void StridedSliceGrad(const KernelCall<StridedSliceGradAttributes, NoScalars>& call) {
  CudaCopyRearranged(call, StridedSliceGradRearrangement(call.attributes(), call.input_boxes[0]));
}

struct SlicePlaces {
  int64_t inner = 1;   // elements that go with one place of the dim
  int64_t extent = 0;  // of the piece along the dim
  int64_t offset = 0;  // its own
  int64_t start = 0;
  int64_t step = 1;
  int64_t length = 0;
};

// Each element once, so x is not read where src stands.
template <class Word>
__global__ void PutSliceKernel(SlicePlaces p, const Word* x, const Word* src, Word* y, int64_t count) {
  ForEachOfGrid(count, [&](int64_t i) {
    const int64_t row = i / p.inner;
    const int64_t block = row / p.extent;
    const int64_t past = row - block * p.extent + p.offset - p.start;
    const int64_t j = past / p.step;
    if (past < 0 || j >= p.length || past != j * p.step) {
      y[i] = x[i];
    } else {
      y[i] = src == nullptr ? Word(0) : src[(block * p.length + j) * p.inner + (i - row * p.inner)];
    }
  });
}

// Zeros where `src` is undefined.
void PutSlice(const Call& call, const Tensor& src) {
  const StridedSliceAttributes& a = call.attributes();
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const Tensor x = CudaDense(call.inputs[0], call.context.allocator);
  SlicePlaces p;
  for (int d = a.dim + 1; d < y.ndim(); ++d) p.inner *= y.shape()[d];
  p.extent = y.shape()[a.dim];
  p.offset = call.output_boxes[0].offset[a.dim];
  p.start = a.start;
  p.step = a.step;
  p.length = a.length;
  VisitWord(ItemSize(y.dtype()), [&](auto tag) {
    using Word = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(y.num_elements()), PutSliceKernel<Word>, p,
               static_cast<const Word*>(x.data()),
               src.defined() ? static_cast<const Word*>(src.data()) : nullptr, static_cast<Word*>(y.data()),
               y.num_elements());
  });
}

void SliceScatter(const Call& call) { PutSlice(call, CudaDense(call.inputs[1], call.context.allocator)); }

void SliceZero(const Call& call) { PutSlice(call, Tensor()); }

const RegisterKernel kRegisterGrad(kStridedSliceGrad, DeviceType::kCuda, StridedSliceGrad);
const RegisterKernel kRegister[] = {
    {kStridedSlice, DeviceType::kCuda, StridedSlice},
    {kSliceScatter, DeviceType::kCuda, SliceScatter},
    {kSliceZero, DeviceType::kCuda, SliceZero},
};

}  // namespace
}  // namespace weft
