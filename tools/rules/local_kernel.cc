#include "tools/rules/local_kernel.h"

#include <string>

#include "absl/strings/str_split.h"
#include "ops/op/kernel.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {

std::vector<Tensor> RunKernel(const OpDef& op, KernelContext& context, absl::Span<const Piece> operands,
                              absl::Span<const ShardBox> output_boxes, const void* attributes,
                              const void* scalars) {
  TensorTypes operand_types;
  std::vector<Tensor> inputs;
  std::vector<ShardBox> input_boxes;
  for (const Piece& piece : operands) {
    WEFT_CHECK(piece.tensor.shape() == piece.box.shape, op.name(), ": a piece of shape ",
               piece.tensor.shape().ToString(), " in a box of ", piece.box.shape.ToString());
    operand_types.push_back({piece.tensor.dtype(), piece.box.global_shape});
    inputs.push_back(piece.tensor);
    input_boxes.push_back(piece.box);
  }
  const TensorTypes output_types = op.Infer(operand_types, attributes);
  WEFT_CHECK(output_types.size() == output_boxes.size(), op.name(), " has ", output_types.size(),
             " outputs, got ", output_boxes.size(), " boxes");
  const ErasedKernel kernel = KernelFor(op, context.allocator->device());

  std::vector<Tensor> outputs(output_boxes.size());
  const std::vector<std::string> in_place = absl::StrSplit(op.in_place(), ' ', absl::SkipEmpty());
  for (size_t i = 0; i < outputs.size(); ++i) {
    WEFT_CHECK(output_boxes[i].global_shape == output_types[i].shape, op.name(), ": output ", i, " is ",
               output_types[i].ToString(), ", its box says ", output_boxes[i].global_shape.ToString());
    if (!in_place.empty()) {
      outputs[i] = inputs[op.FindValue(in_place[i])];
    } else if (!op.is_view()) {
      outputs[i] = Tensor::Empty(context.allocator, output_types[i].dtype, output_boxes[i].shape);
      FillTensor(outputs[i], 77);  // an element that the kernel leaves out must show
    }
  }
  op.Invoke(kernel,
            {context, inputs, absl::MakeSpan(outputs), input_boxes, output_boxes, attributes, scalars});
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorType expected = {output_types[i].dtype, output_boxes[i].shape};
    WEFT_CHECK(
        outputs[i].defined() && outputs[i].dtype() == expected.dtype && outputs[i].shape() == expected.shape,
        op.name(), ": output ", i, " should be ", expected.ToString(), ", is ",
        outputs[i].defined() ? outputs[i].TypeString() : "undefined");
  }
  return outputs;
}

}  // namespace weft
