#include "dtensor/call/call_on_pieces.h"

#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "dtensor/call/launch_kernel.h"
#include "ops/op/kernel.h"

namespace weft {

DTensors CallOnPieces(const ErasedCall& call, int dim, PieceOutputs kind) {
  const auto& [op, operands, attributes, scalars, like] = call;
  MeshContext& context = *operands[0]->context;
  const DeviceMesh& mesh = context.mesh();
  const Layout& layout = operands[0]->layout;
  WEFT_CHECK(!layout.HasPartial(), op.name(), ": pieces of a Partial ", operands[0].Share().ToString());
  TensorTypes types;
  DTensors used;  // keeps the locals alive
  absl::InlinedVector<Tensor, 4> locals;
  std::vector<ShardBox> operand_boxes;
  for (const DTensorRef operand : operands) {
    used.push_back(operand->layout == layout ? operand.Share() : operand->Moved(layout));
    locals.push_back(used.back().ToLocal());
    types.push_back({operand->type.dtype, locals.back().shape()});
    operand_boxes.push_back(used.back().LocalBox());
  }
  int64_t num_pieces = 1;
  for (int axis : layout.ShardAxes(dim)) num_pieces *= mesh.axis_size(axis);
  std::vector<TensorType> output_types;
  std::vector<ShardBox> output_boxes;
  absl::InlinedVector<Tensor, 4> results;
  for (const TensorType& piece : op.Infer(types, attributes)) {
    TensorType whole = {piece.dtype, operands[0]->type.shape};
    if (kind == PieceOutputs::kStatistic) whole.shape[dim] = piece.shape[dim] * num_pieces;
    const ShardBox box = LocalBox(whole.shape, layout, mesh, context.coordinate());
    WEFT_CHECK(box.shape == piece.shape, op.name(), ": a piece gives ", piece.ToString(), ", expected ",
               box.shape.ToString());
    results.push_back(Tensor::Empty(context.allocator(), piece.dtype, piece.shape));
    output_types.push_back(whole);
    output_boxes.push_back(box);
  }
  LaunchKernel(context, op, KernelFor(op, context.allocator()->device()),
               {.context = context.kernel_context(),
                .inputs = locals,
                .outputs = absl::MakeSpan(results),
                .input_boxes = operand_boxes,
                .output_boxes = output_boxes,
                .erased_attributes = attributes,
                .erased_scalars = scalars});
  DTensors outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    outputs.push_back(DTensor(
        MakeIntrusive<DTensorImpl>(operands[0]->context, layout, output_types[i], std::move(results[i]))));
  }
  return outputs;
}

}  // namespace weft
