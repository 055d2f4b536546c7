#include <cuda_runtime.h>

#include "ops/cuda/blocks/indices.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/mapped_copy.h"
#include "ops/cuda/indexing/sum_by_index.h"
#include "ops/indexing/gather.h"
#include "ops/op/kernel.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

struct GatherExtents {
  int64_t inner = 1;   // elements that go with one index of the dim
  int64_t length = 0;  // of y along the dim
  int64_t slots = 0;   // of the piece of x
  int64_t first = 0;   // its offset
  int64_t global = 0;  // of x
};

// Unlike embedding's, indices differ from element to element, so elements move one by one.
template <class T>
__global__ void GatherKernel(GatherExtents n, const T* x, const int64_t* index, T absent, T bad, T* y,
                             int64_t count) {
  ForEachOfGrid(count, [&](int64_t i) {
    const int64_t outer = i / (n.inner * n.length);
    const int64_t at = index[i];
    const int64_t slot = at - n.first;
    T value = absent;
    if (at < 0 || at >= n.global) {
      value = bad;
    } else if (slot >= 0 && slot < n.slots) {
      value = x[(outer * n.slots + slot) * n.inner + i % n.inner];
    }
    y[i] = value;
  });
}

void Gather(const KernelCall<GatherAttributes, NoScalars>& call) {
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const int dim = call.attributes().dim;
  const Tensor x = CudaDense(call.inputs[0], call.context.allocator);
  const Tensor index = CudaIndices(call.inputs[1], call.context.allocator);
  GatherExtents n;
  for (int d = dim + 1; d < y.ndim(); ++d) n.inner *= y.shape()[d];
  n.length = y.shape()[dim];
  n.slots = x.shape()[dim];
  n.first = call.input_boxes[0].offset[dim];
  n.global = call.input_boxes[0].global_shape[dim];
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(y.num_elements()), GatherKernel<T>, n, x.data<T>(),
               index.data<int64_t>(), ConvertElement<T>(kAbsent), BadElement<T>(), y.data<T>(),
               y.num_elements());
  });
}

void ScatterSum(const KernelCall<ScatterSumAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  CudaSumByBlock(call, call.outputs[0], CudaDense(call.inputs[1], call.context.allocator), dim,
                 CudaIndices(call.inputs[0], call.context.allocator),
                 CudaSlots(call.output_boxes[0], dim, call.outputs[0].dtype()),
                 EmptyPlace(call.attributes().to_add));
}

const RegisterKernel kRegister(kGather, DeviceType::kCuda, Gather);
const RegisterKernel kRegisterScatter(kScatterSum, DeviceType::kCuda, ScatterSum);

}  // namespace
}  // namespace weft
