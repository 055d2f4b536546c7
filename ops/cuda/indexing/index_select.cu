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

// hidden[index[j] - first] = 1; several threads may write the same.
__global__ void HideKernel(const int64_t* index, int64_t count, int64_t first, int64_t extent,
                           uint8_t* hidden) {
  ForEachOfGrid(count, [&](int64_t j) {
    const int64_t local = index[j] - first;
    if (local >= 0 && local < extent) hidden[local] = 1;
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
                CudaIndices(call.inputs[0], call.context.allocator), call.output_boxes[0].offset[dim],
                EmptyPlace(call.attributes().to_add));
}

// An index that is listed twice is hidden once: the CPU's kernel refuses it, which would have to wait here.
void IndexZero(const KernelCall<IndexZeroAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  const ShardBox& x = call.input_boxes[0];
  if (call.outputs[0].num_elements() == 0) return;
  const Tensor index = CudaIndices(call.inputs[1], call.context.allocator);
  const Tensor hidden = Tensor::Empty(call.context.allocator, DType::kU8, {x.shape[dim]});
  FillTensor(hidden, 0);
  if (index.num_elements() > 0) {
    LaunchCuda(KernelStream(call), GridOver(index.num_elements()), HideKernel, index.data<int64_t>(),
               index.num_elements(), x.offset[dim], x.shape[dim], hidden.data<uint8_t>());
  }
  std::vector<CudaDimSource> sources(x.shape.ndim());
  sources[dim].is_mapped = true;
  sources[dim].hidden = hidden.data<uint8_t>();
  CudaMappedCopy(call, call.inputs[0], x, call.outputs[0], call.output_boxes[0], sources,
                 EmptyPlace(call.attributes().to_add));
}

const RegisterKernel kRegisterSelect(kIndexSelect, DeviceType::kCuda, IndexSelect);
const RegisterKernel kRegisterAdd(kIndexAdd, DeviceType::kCuda, IndexAdd);
const RegisterKernel kRegisterZero(kIndexZero, DeviceType::kCuda, IndexZero);

}  // namespace
}  // namespace weft
