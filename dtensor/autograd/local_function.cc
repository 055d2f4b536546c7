#include "dtensor/autograd/local_function.h"

#include <algorithm>
#include <utility>

#include "dtensor/redistribution/agreement.h"
#include "dtensor/tape/kept_results.h"
#include "dtensor/tape/saved_value.h"
#include "dtensor/tape/tape_node.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A piece that the function's author has made, as the DTensor that it was declared to be.
DTensor Take(const IntrusivePtr<MeshContext>& context, const LocalFunction& function, const std::string& what,
             const Tensor& piece, const TensorType& type, const Layout& layout) {
  const std::string name = absl::StrCat(function.name, ": ", what);
  WEFT_REQUIRE(piece.defined() && piece.dtype() == type.dtype, name, " is ",
               piece.defined() ? piece.TypeString() : "undefined", ", expected ", DTypeName(type.dtype));
  context->CheckPiece(piece, name);
  const ShardBox box = LocalBox(type.shape, layout, context->mesh(), context->coordinate());
  WEFT_REQUIRE(piece.shape() == box.shape, name, ": layout ", layout.ToString(context->mesh()), " of ",
               type.ToString(), " gives this rank ", box.shape.ToString(), ", got ", piece.TypeString());
  if (function.check_replicas) CheckReplicas(*context, piece, type, layout, name);
  return DTensor(MakeIntrusive<DTensorImpl>(context, layout, type, piece));
}

class LocalNode final : public TapeNode {
 public:
  LocalNode(const IntrusivePtr<MeshContext>& context, Edges edges, const LocalFunction& function,
            absl::Span<const DTensor> operands, absl::Span<const DTensor> outputs)
      : TapeNode(context->state(), std::move(edges), static_cast<int>(outputs.size())),
        context_(context),
        function_(function) {
    for (const DTensor& operand : operands) operands_.push_back(SavedValue(operand));
    for (const DTensor& operand : operands) types_.push_back(operand.type());
    // Without history, which leads to this node: that would be a cycle of owners.
    for (const DTensor& output : outputs) outputs_.push_back(SavedValue(WithoutHistory(output)));
  }

  std::string Name() const override { return function_.name; }
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients, const NodeRun& run) override;

 private:
  void ThrowIfRecorded(MeshContext& context) const {
    if (!context.state().grad_enabled()) return;
    Throw(absl::StatusCode::kFailedPrecondition, function_.name,
          ": its backward is a function of pieces, of which nothing is recorded: there is no gradient of its "
          "gradient");
  }

  IntrusivePtr<MeshContext> context_;
  LocalFunction function_;
  std::vector<TensorType> types_;
  std::vector<SavedValue> operands_;
  std::vector<SavedValue> outputs_;
};

DTensors LocalNode::Backward(MeshContext& context, absl::Span<const DTensor> gradients, const NodeRun& run) {
  ThrowIfRecorded(context);
  if (operands_.empty()) {
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: the history of a result of ", function_.name,
          " was used up by an earlier Backward", kHowToRetain);
  }
  std::vector<Tensor> operand_pieces;
  std::vector<Tensor> output_pieces;
  std::vector<Tensor> gradient_pieces;
  for (const SavedValue& saved : operands_) operand_pieces.push_back(saved.Unpack(function_.name).ToLocal());
  for (const SavedValue& saved : outputs_) output_pieces.push_back(saved.Unpack(function_.name).ToLocal());
  for (size_t i = 0; i < gradients.size(); ++i) {
    const LocalOutput& output = function_.outputs[i];
    if (gradients[i].defined()) {
      gradient_pieces.push_back(gradients[i].Redistribute(output.gradient).ToLocal());
      continue;
    }
    const ShardBox box =
        LocalBox(output.type.shape, output.gradient, context_->mesh(), context_->coordinate());
    gradient_pieces.push_back(Tensor::Empty(context_->allocator(), output.type.dtype, box.shape));
    FillTensor(gradient_pieces.back(), 0);
  }
  const std::vector<Tensor> made = function_.backward({operand_pieces, output_pieces, gradient_pieces});
  WEFT_REQUIRE(made.size() == types_.size(), function_.name, ": backward returned ", made.size(),
               " gradients for ", types_.size(), " operands");
  if (!run.retain) {
    operands_.clear();
    outputs_.clear();
  }
  DTensors results(types_.size());
  for (size_t i = 0; i < made.size(); ++i) {
    if (!Wants(static_cast<int>(i), run) || !made[i].defined()) continue;
    results[i] = Take(context_, function_, absl::StrCat("the gradient of operand ", i), made[i], types_[i],
                      function_.operands[i].gradient);
  }
  return results;
}

void CheckRecordable(const LocalFunction& function, const DeviceMesh& mesh) {
  if (function.backward == nullptr) {
    Throw(absl::StatusCode::kFailedPrecondition, function.name,
          " has no backward; call it under NoGradGuard, or on Detach()ed operands");
  }
  const auto check = [&](const char* what, size_t i, const Layout& layout) {
    if (AddsUp(layout)) return;
    Throw(absl::StatusCode::kFailedPrecondition, function.name, ": ", what, " ", i, " lies as ",
          layout.ToString(mesh), ", and the gradient of a term is known for sums alone");
  };
  for (size_t i = 0; i < function.operands.size(); ++i) {
    check("operand", i, function.operands[i].layout);
    check("the gradient of operand", i, function.operands[i].gradient);
  }
  for (size_t i = 0; i < function.outputs.size(); ++i) {
    check("output", i, function.outputs[i].layout);
    check("the gradient of output", i, function.outputs[i].gradient);
  }
}

}  // namespace

DTensors CallLocal(const LocalFunction& function, absl::Span<const DTensor> operands) {
  WEFT_REQUIRE(!operands.empty() && operands.size() == function.operands.size(), function.name, ": expected ",
               function.operands.size(), " operands (and at least 1), got ", operands.size());
  const IntrusivePtr<MeshContext>& context = operands[0].context();
  const bool recorded =
      context->state().grad_enabled() &&
      std::any_of(operands.begin(), operands.end(), [](const DTensor& x) { return x.requires_grad(); });
  if (recorded) CheckRecordable(function, context->mesh());
  std::vector<DTensor> used;
  std::vector<Tensor> pieces;
  for (size_t i = 0; i < operands.size(); ++i) {
    WEFT_REQUIRE(operands[i].defined() && operands[i].context()->mesh() == context->mesh(), function.name,
                 ": operand ", i, " is ", operands[i].ToString(), ", not on mesh ",
                 context->mesh().ToString());
    const Layout& layout = function.operands[i].layout;
    used.push_back(operands[i].layout() == layout ? operands[i] : operands[i].Redistribute(layout));
    pieces.push_back(used.back().ToLocal());
  }
  KeptResults* const kept = context->state().kept_results();
  if (kept != nullptr) kept->NoteReads(Borrow(operands));
  const std::vector<Tensor> made = function.forward(pieces);
  WEFT_REQUIRE(made.size() == function.outputs.size(), function.name, ": forward returned ", made.size(),
               " pieces, declared are ", function.outputs.size(), " outputs");
  DTensors outputs;
  for (size_t i = 0; i < made.size(); ++i) {
    const LocalOutput& output = function.outputs[i];
    outputs.push_back(
        Take(context, function, absl::StrCat("output ", i), made[i], output.type, output.layout));
  }
  if (!recorded) return outputs;
  TapeNode::Edges edges;
  for (const DTensor& operand : used) edges.push_back({operand.impl()->node, operand.impl()->output});
  const IntrusivePtr<TapeNode> node(new LocalNode(context, std::move(edges), function, used, outputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!IsFloating(outputs[i].dtype())) continue;
    outputs[i].impl()->node = node;
    outputs[i].impl()->output = static_cast<int>(i);
  }
  return outputs;
}

}  // namespace weft
