#include <cuda_runtime.h>

#include <vector>

#include "ops/cuda/blocks/indices.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/mapped_copy.h"
#include "ops/cuda/indexing/sum_by_index.h"
#include "ops/indexing/index_select.h"
#include "ops/op/kernel.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

// x but for the places of the dim that a list names: `zero` at those that it names once, `bad` at those that it names more
// often. `counts` says how often, for the `slots` of the dim.
template <class T>
__global__ void ZeroKernel(const int* counts, int64_t slots, int64_t inner, const T* x, T zero, T bad, T* y,
                           int64_t count) {
  ForEachOfGrid(count, [&](int64_t i) {
    const int visits = counts[i / inner % slots];
    y[i] = visits == 0 ? x[i] : visits == 1 ? zero : bad;
  });
}

// A mapped copy, whose list of indices is read where it lies, on the device.
void IndexSelect(const KernelCall<IndexAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  const ShardBox& x = call.input_boxes[0];
  const Tensor index = CudaIndices(call.inputs[1], call.context.allocator);
  std::vector<CudaDimSource> sources(x.shape.ndim());
  sources[dim].is_mapped = true;
  sources[dim].indices = index.data<int64_t>();  // the list is split as y's dim is
  const bool floating = IsFloating(call.inputs[0].dtype());
  CudaMappedCopy(call, call.inputs[0], x, call.outputs[0], call.output_boxes[0], sources,
                 floating ? std::numeric_limits<double>::quiet_NaN() : 0);
}

void IndexAdd(const KernelCall<IndexAddAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  CudaSumByList(call, call.outputs[0], CudaDense(call.inputs[1], call.context.allocator), dim,
                CudaIndices(call.inputs[0], call.context.allocator),
                CudaSlots(call.output_boxes[0], dim, call.outputs[0].dtype()),
                EmptyPlace(call.attributes().to_add));
}

// The CPU's kernel refuses an index that is listed twice; here, where the host does not wait, it is a bad one. So one outside
// the range counts twice.
void IndexZero(const KernelCall<IndexZeroAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const Tensor x = CudaDense(call.inputs[0], call.context.allocator);
  const Tensor index = CudaIndices(call.inputs[1], call.context.allocator);
  const int64_t slots = y.shape()[dim];
  const Tensor counts =
      CudaCountPlaces(call, index, CudaSlots(call.input_boxes[0], dim, y.dtype()), /*of_bad=*/2);
  int64_t inner = 1;
  for (int d = dim + 1; d < y.ndim(); ++d) inner *= y.shape()[d];
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(y.num_elements()), ZeroKernel<T>, counts.data<int32_t>(), slots,
               inner, x.data<T>(), ConvertElement<T>(EmptyPlace(call.attributes().to_add)), BadElement<T>(),
               y.data<T>(), y.num_elements());
  });
}

const RegisterKernel kRegisterSelect(kIndexSelect, DeviceType::kCuda, IndexSelect);
const RegisterKernel kRegisterAdd(kIndexAdd, DeviceType::kCuda, IndexAdd);
const RegisterKernel kRegisterZero(kIndexZero, DeviceType::kCuda, IndexZero);

}  // namespace
}  // namespace weft
