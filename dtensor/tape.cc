#include "dtensor/tape.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "ops/elementwise.h"

namespace weft {
namespace {

// Where a gradient goes that arrived as `arriving`, if its source lay as `source`: along each axis to the source's
// placement, or, where the source was Partial, as it arrived (a Partial gradient of a Partial source stays unreduced).
Layout GradientLayout(const Layout& source, const Layout& arriving) {
  Layout target = source;
  for (int axis = 0; axis < source.num_axes(); ++axis) {
    if (source.IsPartial(axis)) target = target.WithReplicate(axis);
  }
  for (int axis = 0; axis < source.num_axes(); ++axis) {
    if (source.IsPartial(axis)) target = target.With(axis, arriving.placement(axis));
  }
  return target;
}

DTensor Add(const DTensor& a, const DTensor& b) { return Call(kAdd, {a, b}); }

// A recorded call of an op.
class OpNode final : public TapeNode {
 public:
  struct Saved {
    int value;  // operands first, then outputs
    SavedValue tensor;
  };

  OpNode(RankState& state, std::vector<Edge> edges, const OpDef& op, absl::Span<const DTensor> operands,
         absl::Span<const DTensor> used, absl::Span<const DTensor> outputs, const void* attributes, const void* scalars)
      : TapeNode(state, std::move(edges), static_cast<int>(outputs.size())),
        op_(op),
        attributes_(op.CloneAttributes(attributes)),
        scalars_(op.CloneScalars(scalars)) {
    for (size_t i = 0; i < operands.size(); ++i) {
      operand_types_.push_back(operands[i].type());
      operand_layouts_.push_back(operands[i].layout());
      moved_.push_back(operands[i].layout() != used[i].layout());
    }
    for (const DTensor& output : outputs) output_types_.push_back(output.type());
    for (absl::string_view name : absl::StrSplit(op.saves(), ' ', absl::SkipEmpty())) {
      const int value = op.FindValue(name);
      const int output = value - static_cast<int>(operands.size());
      // An output must not be saved with its history, which leads to this node: that would be a cycle of owners.
      saved_.push_back({value, output < 0 ? SavedValue(used[value]) : SavedValue(WithoutHistory(outputs[output]))});
    }
  }

  std::string Name() const override { return op_.name(); }
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients) override;

  const OpDef& op() const { return op_; }
  const void* attributes() const { return attributes_.get(); }
  const void* scalars() const { return scalars_.get(); }
  const std::vector<TensorType>& operand_types() const { return operand_types_; }
  const std::vector<TensorType>& output_types() const { return output_types_; }
  const Layout& operand_layout(int operand) const { return operand_layouts_[operand]; }
  const SavedValue* FindSaved(int value) const {
    for (const Saved& saved : saved_) {
      if (saved.value == value) return &saved.tensor;
    }
    return nullptr;
  }

 private:
  static DTensor WithoutHistory(const DTensor& x) {
    return DTensor(MakeIntrusive<DTensorImpl>(x.context(), x.layout(), x.type(), x.ToLocal()));
  }

  const OpDef& op_;
  std::shared_ptr<const void> attributes_;
  std::shared_ptr<const void> scalars_;
  std::vector<TensorType> operand_types_;
  std::vector<TensorType> output_types_;
  std::vector<Layout> operand_layouts_;
  std::vector<bool> moved_;
  std::vector<Saved> saved_;
  bool used_up_ = false;
};

// What an op's backward rule sees: its emitted ops are dispatched like a user's calls.
class TapeGradContext final : public GradContextBase {
 public:
  TapeGradContext(const OpNode& node, absl::Span<const DTensor> gradients)
      : node_(node), gradients_(gradients), results_(node.operand_types().size()) {}

  TensorType TypeOf(Value value) const override { return values_[value.id].type(); }
  Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes, const void* scalars,
                    int like_operand) override {
    DTensors inputs;
    for (Value operand : operands) inputs.push_back(values_[operand.id]);
    const Layout* like = nullptr;
    Layout wanted;
    if (like_operand >= 0) {
      wanted = GradientLayout(node_.operand_layout(like_operand), node_.operand_layout(like_operand));
      if (!wanted.HasPartial()) like = &wanted;
    }
    Values results;
    for (DTensor& output : CallErased(op, inputs, attributes, scalars, like)) results.push_back(Hold(std::move(output)));
    return results;
  }
  Value grad(int output) override { return gradients_[output].defined() ? Hold(gradients_[output]) : Value(); }
  Value saved(absl::string_view name) override {
    const SavedValue* saved = node_.FindSaved(node_.op().FindValue(name));
    WEFT_CHECK(saved != nullptr, node_.op().name(), ": backward reads '", name, "', which it does not save (saves: ",
               node_.op().saves(), ")");
    return Hold(saved->Unpack(node_.op().name()));
  }
  bool Wants(int operand) const override { return node_.Wants(operand); }
  int num_operands() const override { return static_cast<int>(node_.operand_types().size()); }
  int num_outputs() const override { return node_.num_outputs(); }
  const TensorType& operand_type(int operand) const override { return node_.operand_types()[operand]; }
  const TensorType& output_type(int output) const override { return node_.output_types()[output]; }
  void SetGrad(int operand, Value gradient) override {
    const DTensor& value = values_[gradient.id];
    WEFT_CHECK(value.type() == operand_type(operand), node_.op().name(), ": the gradient of operand ", operand, " is ",
               value.type().ToString(), ", expected ", operand_type(operand).ToString());
    results_[operand] = value;
  }
  const void* erased_attributes() const override { return node_.attributes(); }
  const void* erased_scalars() const override { return node_.scalars(); }

  DTensors TakeResults() { return DTensors(results_.begin(), results_.end()); }

 private:
  Value Hold(DTensor value) {
    values_.push_back(std::move(value));
    return {static_cast<int32_t>(values_.size()) - 1};
  }

  const OpNode& node_;
  absl::Span<const DTensor> gradients_;
  std::vector<DTensor> results_;
  std::vector<DTensor> values_;
};

DTensors OpNode::Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients) {
  if (used_up_) {
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: the history of a result of ", op_.name(),
          " was used up by an earlier Backward");
  }
  TapeGradContext grad_context(*this, gradients);
  op_.Backward(grad_context);
  used_up_ = true;
  saved_.clear();
  DTensors results = grad_context.TakeResults();
  for (size_t i = 0; i < results.size(); ++i) {
    if (!moved_[i] || !results[i].defined()) continue;
    results[i] = results[i].Redistribute(GradientLayout(operand_layouts_[i], results[i].layout()));
  }
  return results;
}

// A recorded explicit Redistribute: the identity on values, so only the gradient's layout is a choice.
class RedistributeNode final : public TapeNode {
 public:
  RedistributeNode(RankState& state, Edge edge, const Layout& source, const RedistributeOptions& options)
      : TapeNode(state, {std::move(edge)}, /*num_outputs=*/1), source_(source), options_(options) {}

  std::string Name() const override { return "redistribute"; }
  DTensors Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients) override {
    Layout target = GradientLayout(source_, gradients[0].layout());
    for (const auto& [axis, placement] : options_.gradient) target = target.With(axis, placement);
    return {gradients[0].Redistribute(target)};
  }

 private:
  Layout source_;
  RedistributeOptions options_;
};

TapeNode::Edge EdgeTo(const DTensor& operand) { return {operand.impl()->node, operand.impl()->output}; }

}  // namespace

DTensors LeafNode::Backward(MeshContext& context, absl::Span<const DTensor> gradients) {
  PurposeGuard purpose(context.state(), Purpose::kGrad);
  const DTensor gradient = gradients[0].Redistribute(layout_);
  gradient_ = gradient_.defined() ? Add(gradient_, gradient) : gradient;
  return {};
}

SavedValue::SavedValue(const DTensor& value) : value_(value) {
  if (value.impl()->regather_from) {
    value_ = DTensor(value.impl()->regather_from);
    regather_to_ = value.layout();
  }
  version_ = value_.impl()->version;
}

DTensor SavedValue::Unpack(absl::string_view reader) const {
  if (value_.impl()->version != version_) {
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: ", reader, " needs the ", value_.ToString(),
          " that it saw in forward, but ", value_.impl()->last_writer, " has changed it in place since");
  }
  if (!regather_to_) return value_;
  PurposeGuard purpose(value_.context()->state(), Purpose::kParam);
  return value_.Redistribute(*regather_to_);
}

void RecordCall(const OpDef& op, absl::Span<const DTensor> operands, absl::Span<const DTensor> used,
                absl::Span<DTensor> outputs, const void* attributes, const void* scalars) {
  if (!operands[0].context()->state().grad_enabled()) return;
  const auto wants_grad = [](const DTensor& operand) { return operand.requires_grad(); };
  if (std::none_of(operands.begin(), operands.end(), wants_grad)) return;
  if (!op.has_backward()) {
    const bool smooth = std::any_of(outputs.begin(), outputs.end(),
                                    [](const DTensor& output) { return IsFloating(output.dtype()); });
    if (!smooth) return;
    Throw(absl::StatusCode::kFailedPrecondition, op.name(),
          " has no backward; call it under NoGradGuard, or on Detach()ed operands");
  }
  std::vector<TapeNode::Edge> edges;
  for (const DTensor& operand : operands) {
    edges.push_back(operand.requires_grad() ? EdgeTo(operand) : TapeNode::Edge());
  }
  const IntrusivePtr<TapeNode> node(new OpNode(operands[0].context()->state(), std::move(edges), op, operands, used,
                                               outputs, attributes, scalars));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!IsFloating(outputs[i].dtype())) continue;
    outputs[i].impl()->node = node;
    outputs[i].impl()->output = static_cast<int>(i);
  }
}

void RecordRedistribute(const DTensor& source, DTensor& result, const RedistributeOptions& options) {
  result.impl()->node = IntrusivePtr<TapeNode>(
      new RedistributeNode(source.context()->state(), EdgeTo(source), source.layout(), options));
}

}  // namespace weft
