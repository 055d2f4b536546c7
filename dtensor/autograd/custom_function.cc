#include "dtensor/autograd/custom_function.h"

#include <algorithm>
#include <utility>

#include "dtensor/tape/saved_value.h"
#include "dtensor/tape/tape_node.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

class CustomNode final : public TapeNode {
 public:
  CustomNode(RankState& state, Edges edges, const CustomFunction& function, const DTensors& operands,
             const DTensors& outputs)
      : TapeNode(state, std::move(edges), static_cast<int>(outputs.size())), function_(function) {
    for (const DTensor& operand : operands) {
      types_.push_back(operand.type());
      meshes_.push_back(operand.context()->mesh());
      operands_.push_back(function.saves_operands ? SavedValue(operand) : SavedValue());
    }
    // Without history, which leads to this node: that would be a cycle of owners.
    for (const DTensor& output : outputs) {
      outputs_.push_back(function.saves_outputs ? SavedValue(WithoutHistory(output)) : SavedValue());
    }
  }

  std::string Name() const override { return function_.name; }
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients, const NodeRun& run) override;

 private:
  // As it was in forward, with the history that it had, for gradients of gradients: none, if it is not floating.
  DTensor Unpack(MeshContext& context, const SavedValue& saved, const Edge& history) const {
    if (!saved.defined()) return DTensor();
    DTensor value = saved.Unpack(function_.name);
    if (!context.state().grad_enabled() || !history.node || !IsFloating(value.dtype())) return value;
    value = WithoutHistory(value);
    value.impl()->node = history.node;
    value.impl()->output = history.output;
    value.impl()->origin = saved.origin();
    return value;
  }

  CustomFunction function_;
  std::vector<TensorType> types_;  // of the operands
  std::vector<DeviceMesh> meshes_;
  std::vector<SavedValue> operands_;
  std::vector<SavedValue> outputs_;
  bool used_up_ = false;
};

DTensors CustomNode::Backward(MeshContext& context, absl::Span<const DTensor> gradients, const NodeRun& run) {
  if (used_up_) {
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: the history of a result of ", function_.name,
          " was used up by an earlier Backward", kHowToRetain);
  }
  CustomGradients of;
  for (size_t i = 0; i < operands_.size(); ++i) {
    of.operands.push_back(Unpack(context, operands_[i], edges()[i]));
    of.wants.push_back(Wants(static_cast<int>(i), run));
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    of.outputs.push_back(
        Unpack(context, outputs_[i], Edge{IntrusivePtr<TapeNode>(this), static_cast<int>(i)}));
  }
  of.gradients.assign(gradients.begin(), gradients.end());
  WEFT_REQUIRE(function_.backward != nullptr, function_.name, ": expected a backward, got an empty function");
  DTensors made = function_.backward(of);
  WEFT_REQUIRE(made.size() == types_.size(), function_.name, ": backward returned ", made.size(),
               " gradients for ", types_.size(), " operands");
  if (!run.retain) {
    operands_.assign(operands_.size(), SavedValue());
    outputs_.assign(outputs_.size(), SavedValue());
    used_up_ = true;
  }
  for (size_t i = 0; i < made.size(); ++i) {
    if (!Wants(static_cast<int>(i), run)) made[i] = DTensor();
    WEFT_REQUIRE(!made[i].defined() || made[i].type() == types_[i], function_.name,
                 ": the gradient of operand ", i, " is ", made[i].defined() ? made[i].type().ToString() : "",
                 ", expected ", types_[i].ToString());
    if (!made[i].defined()) continue;
    const DeviceMesh& given = made[i].context()->mesh();
    WEFT_REQUIRE(given == meshes_[i], function_.name, ": the gradient of operand ", i, " is ",
                 made[i].ToString(), " on mesh (", given.ToString(), "), expected a tensor on mesh (",
                 meshes_[i].ToString(), ")");
  }
  return made;
}

}  // namespace

DTensors CallCustom(const CustomFunction& function, const DTensors& operands) {
  WEFT_REQUIRE(!operands.empty(), function.name, ": expected at least 1 operand, got 0");
  for (size_t i = 0; i < operands.size(); ++i) {
    WEFT_REQUIRE(operands[i].defined(), function.name, ": operand ", i,
                 " is undefined (default-constructed)");
  }
  WEFT_REQUIRE(function.forward != nullptr, function.name, ": expected a forward, got an empty function");
  RankState& state = operands[0].context()->state();
  const bool recorded =
      state.grad_enabled() && std::any_of(operands.begin(), operands.end(),
                                          [](const DTensor& operand) { return operand.requires_grad(); });
  DTensors outputs;
  {
    const NoGradGuard no_grad(state);
    outputs = function.forward(operands);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    WEFT_REQUIRE(outputs[i].defined(), function.name, ": output ", i, " is undefined (default-constructed)");
  }
  if (!recorded) return outputs;
  TapeNode::Edges edges;
  for (const DTensor& operand : operands) edges.push_back(EdgeTo(operand));
  // In handles of their own: a forward may give back what it was given.
  for (DTensor& output : outputs) output = WithoutHistory(output);
  const IntrusivePtr<TapeNode> node(new CustomNode(state, std::move(edges), function, operands, outputs));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!IsFloating(outputs[i].dtype())) continue;
    outputs[i].impl()->node = node;
    outputs[i].impl()->output = static_cast<int>(i);
  }
  return outputs;
}

}  // namespace weft
