#include "dtensor/tape.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "absl/strings/str_join.h"
#include "dtensor/implicit_redistribution.h"
#include "dtensor/redistribute.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Where a gradient goes that arrived as `arriving`, if its source lay as `source`: along each axis to the
// source's placement, or, where the source was Partial, as it arrived (a Partial gradient of a Partial source
// stays unreduced). So it does too along axes where a call took a Replicate source as it was (`used`), though
// it moved it along others: else the bias of a row-parallel product would be reduced here, and not once at
// its leaf.
Layout GradientLayout(const Layout& source, const Layout& arriving, const Layout* used = nullptr) {
  const auto stays = [&](int axis) {
    return source.IsPartial(axis) || (used != nullptr && source.IsReplicate(axis) && used->IsReplicate(axis));
  };
  Layout target = source;
  for (int axis = 0; axis < source.num_axes(); ++axis) {
    if (stays(axis)) target = target.WithReplicate(axis);
  }
  // In the order of arriving: nesting is part of the layout.
  for (int dim = 0; dim < source.ndim(); ++dim) {
    for (int axis : arriving.ShardAxes(dim)) {
      if (stays(axis)) target = target.WithShard(axis, dim);
    }
  }
  for (int axis : arriving.PartialAxes()) {
    if (stays(axis)) target = target.WithPartial(axis, arriving.partial_op(axis));
  }
  return target;
}

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
  OpNode(RankState& state, Edges edges, const OpDef& op, const CallPlan& plan,
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
  DTensors Backward(MeshContext& context, absl::Span<const DTensor> gradients) override;

  const OpDef& op() const { return op_; }
  const CallPlan& plan() const { return *plan_; }
  const void* scalars() const { return scalars_.get(); }
  const SavedValue* FindSaved(int value) const {
    for (size_t i = 0; i < saved_.size(); ++i) {
      if (plan_->saves[i] == value) return &saved_[i];
    }
    return nullptr;
  }

 private:
  const OpDef& op_;
  IntrusivePtr<const CallPlan> plan_;
  ScalarsCopy scalars_;
  absl::InlinedVector<SavedValue, 3> saved_;  // as plan().saves lists them
  bool used_up_ = false;
};

// What an op's backward rule sees: its emitted ops are dispatched like a user's calls.
class TapeGradContext final : public GradContextBase {
 public:
  TapeGradContext(const OpNode& node, absl::Span<const DTensor> gradients)
      : node_(node), gradients_(gradients), results_(node.plan().operand_types.size()) {}

  TensorType TypeOf(Value value) const override { return values_[value.id].type(); }
  Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                    const void* scalars, int like_operand) override {
    DTensorRefs inputs;
    for (Value operand : operands) inputs.push_back(values_[operand.id]);
    const Layout* like = like_operand < 0 ? nullptr : &node_.plan().operand_layouts[like_operand];
    if (like != nullptr && like->HasPartial()) like = nullptr;
    Values results;
    DTensors outputs = CallErased(op, inputs, attributes, scalars, like);
    for (DTensor& output : outputs) results.push_back(Hold(std::move(output)));
    return results;
  }
  Value grad(int output) override {
    return gradients_[output].defined() ? Hold(gradients_[output]) : Value();
  }
  Value saved(absl::string_view name) override {
    const SavedValue* saved = node_.FindSaved(node_.op().FindValue(name));
    WEFT_CHECK(saved != nullptr, node_.op().name(), ": backward reads '", name,
               "', which it does not save (saves: ", node_.op().saves(), ")");
    return Hold(saved->Unpack(node_.op().name()));
  }
  bool Wants(int operand) const override { return node_.Wants(operand); }
  int num_operands() const override { return static_cast<int>(results_.size()); }
  int num_outputs() const override { return node_.num_outputs(); }
  const TensorType& operand_type(int operand) const override { return node_.plan().operand_types[operand]; }
  const TensorType& output_type(int output) const override { return node_.plan().output_types[output]; }
  void SetGrad(int operand, Value gradient) override {
    const DTensor& value = values_[gradient.id];
    WEFT_CHECK(value.type() == operand_type(operand), node_.op().name(), ": the gradient of operand ",
               operand, " is ", value.type().ToString(), ", expected ", operand_type(operand).ToString());
    results_[operand] = value;
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
  DTensors results_;
  absl::InlinedVector<DTensor, 8> values_;
};

// Holds the way back of a gradient, whose operand dispatch had moved, to the guards in force.
void CheckImplicitGradient(MeshContext& context, const OpDef& op, int operand, const DTensor& gradient,
                           const Layout& target) {
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

DTensors OpNode::Backward(MeshContext& context, absl::Span<const DTensor> gradients) {
  if (used_up_) {
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: the history of a result of ", op_.name(),
          " was used up by an earlier Backward");
  }
  TapeGradContext grad_context(*this, gradients);
  op_.Backward(grad_context);
  used_up_ = true;
  saved_.clear();
  DTensors results = grad_context.TakeResults();
  for (size_t i = 0; plan_->moves_any && i < results.size(); ++i) {
    if (!plan_->moves[i] || !results[i].defined()) continue;
    if (!Wants(static_cast<int>(i)) || edges()[i].node->TakesAnyLayout()) continue;
    const Layout& used = plan_->used_layout(i);
    const Layout target = GradientLayout(plan_->operand_layouts[i], results[i].layout(), &used);
    CheckImplicitGradient(context, op_, static_cast<int>(i), results[i], target);
    results[i] = results[i].Redistribute(target);
  }
  return results;
}

// A recorded explicit Redistribute: the identity on values, so only the gradient's layout is a choice.
class RedistributeNode final : public TapeNode {
 public:
  RedistributeNode(RankState& state, Edge edge, const Layout& source, const RedistributeOptions& options)
      : TapeNode(state, Edges{std::move(edge)}, /*num_outputs=*/1), source_(source), options_(options) {}

  std::string Name() const override { return "redistribute"; }
  DTensors Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients) override {
    Layout target = GradientLayout(source_, gradients[0].layout());
    for (const auto& [axis, placement] : options_.gradient) target = PlacedAlong(target, axis, placement);
    return {gradients[0].Redistribute(target)};
  }

 private:
  Layout source_;
  RedistributeOptions options_;
};

// The gradients of a cast copy, summed in the dtype of what was copied: in bf16 the sum of many would stop
// growing.
class CastNode final : public TapeNode {
 public:
  CastNode(RankState& state, Edge edge, DType dtype)
      : TapeNode(state, Edges{std::move(edge)}, /*num_outputs=*/1), dtype_(dtype) {}

  bool TakesAnyLayout() const override { return true; }
  DType SumDType(DType /*arriving*/) const override { return dtype_; }
  std::string Name() const override { return "cast"; }
  DTensors Backward(MeshContext& /*context*/, absl::Span<const DTensor> gradients) override {
    return {gradients[0]};
  }

 private:
  DType dtype_;
};

// This rank's piece in another dtype, by the op's kernel, on all threads.
Tensor CastPiece(const DTensor& x, DType dtype) {
  const NoGradGuard no_grad(x.context()->state());
  const DTensor cast = Call(kCast, {WithoutHistory(x)}, {.dtype = dtype});
  WEFT_CHECK(cast.layout() == x.layout(), "a cast moved ", x.ToString());
  return cast.ToLocal();
}

TapeNode::Edge EdgeTo(DTensorRef operand) { return {operand->node, operand->output}; }

}  // namespace

TapeNode::~TapeNode() {
  // One after another: the end of a long history must not be as many nested destructors. All edges are taken,
  // since what a node saved may hold its sources until it is gone.
  Edges ending = std::move(edges_);
  while (!ending.empty()) {
    const IntrusivePtr<TapeNode> node = std::move(ending.back().node);
    ending.pop_back();
    if (!node || node->use_count() > 1) continue;
    for (Edge& edge : node->edges_) ending.push_back(std::move(edge));
    node->edges_.clear();
  }
}

DTensors LeafNode::Backward(MeshContext& context, absl::Span<const DTensor> gradients) {
  const PurposeGuard purpose(context.state(), Purpose::kGrad);
  const PlannedMovesGuard planned(context.state());
  Accumulate(gradient_, gradients[0].Redistribute(layout_));
  return {};
}

SavedValue::SavedValue(DTensorRef value) {
  if (value->origin) {
    value_ = DTensor(value->origin->at_rest);
    copy_ = Copy{value->type.dtype, value->layout};
    version_ = value->copied_version();  // forward reads the copy, whatever has become of the parameter
  } else {
    value_ = value.Share();
    version_ = value->version();
  }
}

DTensor SavedValue::Unpack(absl::string_view reader) const {
  if (value_.impl()->version() != version_) {
    Throw(absl::StatusCode::kFailedPrecondition, "Backward: ", reader, " needs the ", value_.ToString(),
          " that it saw in forward, but ", value_.impl()->writes->last_writer,
          " has changed it in place since");
  }
  if (!copy_) return value_;
  PurposeGuard purpose(value_.context()->state(), Purpose::kParam);
  return MakeCopy(value_, copy_->dtype, copy_->layout);
}

DTensor WithoutHistory(const DTensor& x) {
  DTensor result(MakeIntrusive<DTensorImpl>(x.context(), x.layout(), x.type(), x.ToLocal()));
  result.impl()->ShareWrites(*x.impl());
  return result;
}

DTensor MakeCopy(const DTensor& at_rest, DType dtype, const Layout& layout) {
  MeshContext& context = *at_rest.context();
  Tensor local = at_rest.ToLocal();
  if (dtype != at_rest.dtype()) local = CastPiece(at_rest, dtype);
  const TensorType type = {dtype, at_rest.shape()};
  local = RedistributeLocal(context, local, type, at_rest.layout(), layout);
  DTensor copy(MakeIntrusive<DTensorImpl>(at_rest.context(), layout, type, std::move(local)));
  copy.impl()->ShareWrites(*at_rest.impl());
  return copy;
}

IntrusivePtr<TapeNode> MakeCastNode(RankState& state, IntrusivePtr<TapeNode> source, DType dtype) {
  return IntrusivePtr<TapeNode>(new CastNode(state, {std::move(source), 0}, dtype));
}

bool WantsRecording(const OpDef& op, absl::Span<const DTensorRef> operands,
                    absl::Span<const TensorType> outputs) {
  if (!operands[0]->context->state().grad_enabled()) return false;
  const auto wants_grad = [](DTensorRef operand) { return operand.requires_grad(); };
  if (std::none_of(operands.begin(), operands.end(), wants_grad)) return false;
  if (op.has_backward()) return true;
  const bool smooth = std::any_of(outputs.begin(), outputs.end(),
                                  [](const TensorType& output) { return IsFloating(output.dtype); });
  if (!smooth) return false;
  const auto append = [](std::string* out, DTensorRef operand) { out->append(operand.Share().ToString()); };
  Throw(absl::StatusCode::kFailedPrecondition, op.name(), "(", absl::StrJoin(operands, ", ", append),
        ") has no backward; call it under NoGradGuard, or on Detach()ed operands");
}

void RecordCall(const OpDef& op, const CallPlan& plan, absl::Span<const DTensorRef> operands,
                absl::Span<const DTensorRef> used, absl::Span<DTensor> outputs, const void* scalars) {
  TapeNode::Edges edges;
  for (const DTensorRef operand : operands) {
    edges.push_back(operand.requires_grad() ? EdgeTo(operand) : TapeNode::Edge());
  }
  const IntrusivePtr<TapeNode> node(
      new OpNode(operands[0]->context->state(), std::move(edges), op, plan, used, outputs, scalars));
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!IsFloating(plan.output_types[i].dtype)) continue;
    outputs[i].impl()->node = node;
    outputs[i].impl()->output = static_cast<int>(i);
  }
}

void Accumulate(DTensor& sum, DTensor term) {
  if (!sum.defined()) {
    sum = std::move(term);
  } else if (!AddInPlace(sum, term)) {
    sum = Call(kAdd, {sum, term});
  }
}

void RecordRedistribute(const DTensor& source, DTensor& result, const RedistributeOptions& options) {
  result.impl()->node = IntrusivePtr<TapeNode>(
      new RedistributeNode(source.context()->state(), EdgeTo(source), source.layout(), options));
}

}  // namespace weft
