#include "dtensor/nn/part_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "dtensor/tape/saved_value.h"
#include "dtensor/tape/tape_node.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// A call whose outputs are first in its edges, where this rank has made them, and then its inputs. An output's gradient
// goes to it; inputs get theirs by what the call recorded, and from here only the word that this is behind them.
class PartNode final : public TapeNode {
 public:
  PartNode(RankState& state, Edges edges, int num_outputs, absl::string_view name)
      : TapeNode(state, std::move(edges), num_outputs), name_(name) {}

  std::string Name() const override { return name_; }
  DTensors Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients,
                    const NodeRun& /*run*/) override {
    return DTensors(gradients.begin(), gradients.end());
  }

 private:
  const std::string name_;
};

TapeNode::Edge HistoryEdge(const DTensor& x) { return x.requires_grad() ? EdgeTo(x) : TapeNode::Edge(); }

void CheckOutputs(absl::string_view name, const DeviceMesh& mesh, const DTensors& outputs, int num_outputs,
                  bool links) {
  WEFT_REQUIRE(std::ssize(outputs) == num_outputs, name, ": expected ", num_outputs, " outputs, got ",
               outputs.size());
  for (int i = 0; i < num_outputs; ++i) {
    const DTensor& output = outputs[i];
    WEFT_REQUIRE(output.defined() && output.context()->mesh() == mesh, name, ": output ", i, " is ",
                 output.ToString(), ", expected a tensor on mesh (", mesh.ToString(), ")");
    WEFT_REQUIRE(!links || IsFloating(output.dtype()), name, ": output ", i, " is ", output.ToString(),
                 "; what leaves a part of a model whose inputs have gradients is floating: cast it there, or "
                 "call it under NoGradGuard");
  }
}

}  // namespace

DTensors CallOnPart(absl::string_view name, const IntrusivePtr<MeshContext>& part, const DTensors& inputs,
                    int num_outputs, absl::FunctionRef<DTensors(const DTensors&)> run) {
  RankState& state = part->state();
  const bool links =
      state.grad_enabled() &&
      std::any_of(inputs.begin(), inputs.end(), [](const DTensor& input) { return input.requires_grad(); });
  DTensors outputs;
  TapeNode::Edges edges;
  if (part->is_member()) {
    outputs = run(inputs);
    CheckOutputs(name, part->mesh(), outputs, num_outputs, links);
    if (!links) return outputs;
    for (DTensor& output : outputs) {
      edges.push_back(HistoryEdge(output));
      output = WithoutHistory(output);
    }
  } else {
    for (int i = 0; i < num_outputs; ++i) outputs.push_back(DTensor::Absent(part));
    if (!links) return outputs;
  }
  for (const DTensor& input : inputs) edges.push_back(HistoryEdge(input));
  const IntrusivePtr<TapeNode> node(new PartNode(state, std::move(edges), num_outputs, name));
  for (int i = 0; i < num_outputs; ++i) {
    outputs[i].impl()->node = node;
    outputs[i].impl()->output = i;
  }
  return outputs;
}

}  // namespace weft
