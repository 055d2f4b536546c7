#include "dtensor/tape/op_node.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/call/execute.h"
#include "dtensor/redistribution/implicit.h"
#include "dtensor/tape/gradient_layout.h"
#include "dtensor/tape/redistribute_node.h"
#include "dtensor/tape/saved_value.h"
#include "dtensor/tape/tape_node.h"

namespace weft {
namespace {

// A copy of a call's scalars: in place where they are small plain data, as all are but users' own.
class ScalarsCopy {
 public:
  ScalarsCopy(const OpDef& op, const void* scalars) {
    const int size = op.scalars_size();
    if (size >= 0 && size <= static_cast<int>(sizeof(small_))) {
      std::memcpy(small_, scalars, static_cast<size_t>(size));
    } else {
      large_ = op.CloneScalars(scalars);
    }
  }
  ScalarsCopy(const ScalarsCopy&) = delete;
  ScalarsCopy& operator=(const ScalarsCopy&) = delete;

  const void* get() const { return large_ != nullptr ? large_.get() : small_; }

 private:
  alignas(std::max_align_t) std::byte small_[48];
  std::shared_ptr<const void> large_;
};

// A recorded call of an op. What follows from the call's key it reads from the plan, which it shares.
class OpNode final : public TapeNode {
 public:
  OpNode(RankState& state, Edges edges, const OpDef& op, const ResolvedCall& plan,
         absl::Span<const DTensorRef> used, absl::Span<const DTensor> outputs, const void* scalars)
      : TapeNode(state, std::move(edges), static_cast<int>(outputs.size())),
        op_(op),
        plan_(&plan),
        scalars_(op, scalars) {
    for (const int value : plan.saves) {
      const int output = value - static_cast<int>(used.size());
      // An output must not be saved with its history, which leads to this node: that would be a cycle of
      // owners.
      saved_.push_back(output < 0 ? SavedValue(used[value]) : SavedValue(WithoutHistory(outputs[output])));
    }
  }

  std::string Name() const override { return op_.name(); }
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients, const NodeRun& run) override;

  const OpDef& op() const { return op_; }
  const ResolvedCall& plan() const { return *plan_; }
  const void* scalars() const { return scalars_.get(); }
  const SavedValue* FindSaved(int value) const {
    for (size_t i = 0; i < saved_.size(); ++i) {
      if (plan_->saves[i] == value) return &saved_[i];
    }
    return nullptr;
  }
  // An operand or output of the call, as it was unpacked from `saved`, with the history that it had in forward:
  // for gradients of gradients.
  DTensor WithHistory(const DTensor& unpacked, int value, const SavedValue& saved) const;

 private:
  const OpDef& op_;
  IntrusivePtr<const ResolvedCall> plan_;
  ScalarsCopy scalars_;
  absl::InlinedVector<SavedValue, 3> saved_;  // as plan().saves lists them
  bool used_up_ = false;
};

DTensor OpNode::WithHistory(const DTensor& unpacked, int value, const SavedValue& saved) const {
  const int output = value - static_cast<int>(edges().size());
  Edge edge = output < 0 ? edges()[value] : Edge{IntrusivePtr<TapeNode>(const_cast<OpNode*>(this)), output};
  if (!edge.node) return unpacked;
  if (output < 0 && plan_->moves_any && plan_->moves[value]) {
    RankState& state = unpacked.context()->state();
    edge = {MakeRedistributeNode(state, std::move(edge), plan_->operand_layouts[value]), 0};
  }
  DTensor result = WithoutHistory(unpacked);
  result.impl()->node = std::move(edge.node);
  result.impl()->output = edge.output;
  result.impl()->origin = saved.origin();  // so that the tape keeps no copy of it either
  return result;
}

// What an op's backward rule sees. Its emitted ops are recorded where gradients are enabled.
class TapeGradContext final : public GradContextBase {
 public:
  TapeGradContext(const OpNode& node, absl::Span<const DTensor> gradients, const NodeRun& run)
      : node_(node), gradients_(gradients), run_(run), results_(node.plan().operand_types.size()) {}

  TensorType TypeOf(Value value) const override { return values_[value.id].type(); }
  Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                    const void* scalars, int like_operand) override {
    DTensorRefs inputs;
    for (Value operand : operands) inputs.push_back(values_[operand.id]);
    const Layout* like = like_operand < 0 ? nullptr : &node_.plan().operand_layouts[like_operand];
    if (like != nullptr && like->HasPartial()) like = nullptr;
    Values results;
    Execution execution(
        {.op = op, .operands = inputs, .attributes = attributes, .scalars = scalars, .like = like});
    DTensors outputs = RunRecorded(execution);
    for (DTensor& output : outputs) results.push_back(Hold(std::move(output)));
    return results;
  }
  Value grad(int output) override {
    return gradients_[output].defined() ? Hold(gradients_[output]) : Value();
  }
  Value saved(absl::string_view name) override {
    const int value = node_.op().FindValue(name);
    const SavedValue* saved = node_.FindSaved(value);
    WEFT_CHECK(saved != nullptr, node_.op().name(), ": backward reads '", name,
               "', which it does not save (saves: ", node_.op().saves(), ")");
    DTensor unpacked = saved->Unpack(node_.op().name());
    const bool recorded = unpacked.context()->state().grad_enabled();
    return Hold(recorded ? node_.WithHistory(unpacked, value, *saved) : std::move(unpacked));
  }
  bool Wants(int operand) const override { return node_.Wants(operand, run_); }
  bool TakesTerms(int operand, Value gradient) const override {
    const DTensor& value = values_[gradient.id];
    return Wants(operand) && value.layout().HasPartial() &&
           node_.edges()[operand].node->TakesTermsIn(value.dtype());
  }
  int num_operands() const override { return static_cast<int>(results_.size()); }
  int num_outputs() const override { return node_.num_outputs(); }
  const TensorType& operand_type(int operand) const override { return node_.plan().operand_types[operand]; }
  const TensorType& output_type(int output) const override { return node_.plan().output_types[output]; }
  void SetGrad(int operand, Value gradient) override {
    const DTensor& value = values_[gradient.id];
    const TensorType& type = operand_type(operand);
    const bool fits = value.type() == type || (value.shape() == type.shape && TakesTerms(operand, gradient));
    WEFT_CHECK(fits, node_.op().name(), ": the gradient of operand ", operand, " is ",
               value.type().ToString(), ", expected ", type.ToString());
    results_[operand] = value;
  }
  void ReleaseGrad(int operand, Value gradient) override {
    SetGrad(operand, gradient);
    if (run_.early == nullptr || !Wants(operand)) return;
    values_[gradient.id] = DTensor();  // who takes it may have the only handle
    run_.early->Take(operand, results_[operand]);
  }
  const void* erased_attributes() const override { return node_.plan().attributes.get(); }
  const void* erased_scalars() const override { return node_.scalars(); }

  DTensors TakeResults() { return std::move(results_); }

 private:
  Value Hold(DTensor value) {
    values_.push_back(std::move(value));
    return {static_cast<int32_t>(values_.size()) - 1};
  }

  const OpNode& node_;
  absl::Span<const DTensor> gradients_;
  const NodeRun& run_;
  DTensors results_;
  absl::InlinedVector<DTensor, 8> values_;
};

// Holds the way back of a gradient, whose operand dispatch had moved, to the guards in force.
void CheckImplicitGradient(const OpDef& op, int operand, const DTensor& gradient, const Layout& target) {
  MeshContext& context = *gradient.context();
  if (context.state().implicit_guard() == nullptr) return;
  ImplicitMoves moves(context);
  moves.Add(absl::StrCat("the gradient of operand ", operand), gradient.type(), gradient.layout(), target);
  moves.Check(
      op.name(), [&] { return absl::StrCat("backward of ", op.name()); },
      [&] {
        return absl::StrCat("in forward, Redistribute operand ", operand, " from ",
                            target.ToString(context.mesh()), " to where it is used");
      });
}

DTensors OpNode::Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients, const NodeRun& run) {
  if (used_up_) {
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: the history of a result of ", op_.name(),
          " was used up by an earlier Backward", kHowToRetain);
  }
  TapeGradContext grad_context(*this, gradients, run);
  op_.Backward(grad_context);
  if (!run.retain) {
    used_up_ = true;
    saved_.clear();
  }
  DTensors results = grad_context.TakeResults();
  for (size_t i = 0; plan_->moves_any && i < results.size(); ++i) {
    if (!plan_->moves[i] || !results[i].defined()) continue;
    if (!Wants(static_cast<int>(i), run) || edges()[i].node->TakesAnyLayout()) continue;
    const Layout& used = plan_->used_layout(i);
    const Layout target = GradientLayout(plan_->operand_layouts[i], results[i].layout(), &used);
    CheckImplicitGradient(op_, static_cast<int>(i), results[i], target);
    if (results[i].layout() != target) results[i] = results[i].Redistribute(target);
  }
  return results;
}

// How to write the op of a gradient that has none, so that it has one.
absl::string_view UnfusedForm(absl::string_view gradient) {
  if (absl::StrContains(gradient, "attention")) return "compose attention of products and Softmax";
  if (absl::StartsWith(gradient, "conv_")) {
    return "compose the convolution of Pad, and of a Slice and a product for each element of the kernel";
  }
  return "compose its op of others";
}

}  // namespace

bool WantsRecording(const ErasedCall& call, absl::Span<const TensorType> outputs) {
  const auto& operands = call.operands;
  if (!operands[0]->context->state().grad_enabled()) return false;
  const auto wants_grad = [](DTensorRef operand) { return operand.requires_grad(); };
  if (std::none_of(operands.begin(), operands.end(), wants_grad)) return false;
  if (call.op.has_backward()) return true;
  const bool smooth = std::any_of(outputs.begin(), outputs.end(),
                                  [](const TensorType& output) { return IsFloating(output.dtype); });
  if (!smooth) return false;
  if (operands[0]->context->state().in_backward()) {
    Throw(absl::StatusCode::kFailedPrecondition, call.ToString(),
          " is a gradient that has none: ", UnfusedForm(call.op.name()), ", or differentiate once");
  }
  Throw(absl::StatusCode::kFailedPrecondition, call.ToString(),
        " has no backward; call it under NoGradGuard, or on Detach()ed operands");
}

DTensors RunRecorded(Execution& execution) {
  const ErasedCall& call = execution.call();
  const bool recorded = WantsRecording(call, execution.plan().output_types);
  DTensors outputs = execution.Run();
  if (recorded) RecordCall(call, execution.plan(), execution.used(), absl::MakeSpan(outputs));
  return outputs;
}

void RecordCall(const ErasedCall& call, const ResolvedCall& plan, absl::Span<const DTensorRef> used,
                absl::Span<DTensor> outputs) {
  TapeNode::Edges edges;
  for (const DTensorRef operand : call.operands) {
    edges.push_back(operand.requires_grad() ? EdgeTo(operand) : TapeNode::Edge());
  }
  const IntrusivePtr<TapeNode> node(new OpNode(call.operands[0]->context->state(), std::move(edges), call.op,
                                               plan, used, outputs, call.scalars));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!IsFloating(plan.output_types[i].dtype)) continue;
    outputs[i].impl()->node = node;
    outputs[i].impl()->output = static_cast<int>(i);
  }
}

}  // namespace weft
