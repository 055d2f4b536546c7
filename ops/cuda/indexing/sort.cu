#include "ops/cuda/blocks/indices.h"
#include "ops/cuda/indexing/sort_rows.h"
#include "ops/cuda/indexing/sum_by_index.h"
#include "ops/indexing/sort.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void Sort(const KernelCall<SortAttributes, NoScalars>& call) {
  const SortAttributes& a = call.attributes();
  CudaSortRows(call, call.inputs[0], {.dim = a.dim, .descending = a.descending, .names = Tensor()},
               call.outputs[0], call.outputs[1]);
}

// Halves are added in float and rounded once; f32 in f32, in the order of the selection.
void SelectionGrad(const KernelCall<SelectionAttributes, NoScalars>& call) {
  const SelectionAttributes& a = call.attributes();
  const auto& allocator = call.context.allocator;
  CudaSumByBlock(call, call.outputs[0], CudaDense(call.inputs[1], allocator), a.dim,
                 CudaIndices(call.inputs[0], allocator),
                 CudaSlots(call.output_boxes[0], a.dim, call.outputs[0].dtype()));
}

const RegisterKernel kRegister(kSort, DeviceType::kCuda, Sort);
const RegisterKernel kRegisterSelection(kSelectionGrad, DeviceType::kCuda, SelectionGrad);

}  // namespace
}  // namespace weft
