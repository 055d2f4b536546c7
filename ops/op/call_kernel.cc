#include "ops/op/call_kernel.h"

#include "absl/container/inlined_vector.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Boxes = absl::InlinedVector<ShardBox, 4>;

Boxes WholeBoxes(absl::Span<const Tensor> tensors) {
  Boxes boxes;
  for (const Tensor& tensor : tensors) boxes.push_back(WholeBox(tensor.shape()));
  return boxes;
}

}  // namespace

void CallKernelErased(const OpDef& op, KernelContext& context, absl::Span<const Tensor> inputs,
                      absl::Span<Tensor> outputs, const void* attributes, const void* scalars) {
  const ErasedKernel kernel = KernelFor(op, outputs[0].device());
  const Boxes input_boxes = WholeBoxes(inputs);
  const Boxes output_boxes = WholeBoxes(outputs);
  op.Invoke(kernel, {.context = context,
                     .inputs = inputs,
                     .outputs = outputs,
                     .input_boxes = input_boxes,
                     .output_boxes = output_boxes,
                     .erased_attributes = attributes,
                     .erased_scalars = scalars});
}

}  // namespace weft
