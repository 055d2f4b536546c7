#include "dtensor/dispatch.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/explain.h"
#include "dtensor/implicit_redistribution.h"
#include "dtensor/redistribute.h"
#include "dtensor/tape.h"
#include "ops/kernel.h"
#include "ops/propagate.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

using Types = absl::InlinedVector<TensorType, 4>;
using Layouts = absl::InlinedVector<Layout, 4>;

// "matmul(f32[8, 6] [dp, -], f32[6, 4] [-, tp])".
std::string CallText(const OpDef& op, absl::Span<const DTensor> operands) {
  const auto append = [](std::string* out, const DTensor& operand) { out->append(operand.ToString()); };
  return absl::StrCat(op.name(), "(", absl::StrJoin(operands, ", ", append), ")");
}

// Errors: InvalidArgument for a wrong number of operands.
void CheckOperandCount(const OpDef& op, size_t count) {
  const absl::string_view names = op.operands();
  const bool any_number = absl::EndsWith(names, "...");
  const size_t expected = std::vector<std::string>(absl::StrSplit(names, ' ', absl::SkipEmpty())).size();
  WEFT_REQUIRE(count > 0 && (any_number || count == expected), op.name(), ": expected ",
               any_number ? "at least 1" : absl::StrCat(expected), " operands (", names, "), got ", count);
}

// What every call must check. The number of operands is part of the cache key, so only a call without any,
// which has no context to look in, is refused here; another wrong number is a miss, and refused by MakePlan.
// Errors: InvalidArgument for no operands, an undefined one, or operands on different meshes.
void CheckOperands(const OpDef& op, absl::Span<const DTensor> operands) {
  if (operands.empty()) CheckOperandCount(op, 0);
  for (const DTensor& operand : operands) {
    WEFT_REQUIRE(operand.defined(), op.name(), ": operand ", &operand - operands.data(),
                 " is undefined (default-constructed)");
    WEFT_REQUIRE(operand.context() == operands[0].context() ||
                     operand.context()->mesh() == operands[0].context()->mesh(),
                 op.name(), ": operands lie on different meshes: ", operands[0].context()->mesh().ToString(),
                 " and ", operand.context()->mesh().ToString(), " in ", CallText(op, operands),
                 "; redistribute one first");
  }
}

ErasedKernel KernelFor(const OpDef& op, const Device& device) {
  // A meta tensor has no elements: only views, which compute shapes, run their kernel on it.
  if (device.type == DeviceType::kMeta && !op.is_view()) return nullptr;
  const ErasedKernel kernel = FindKernel(op, DeviceType::kCpu);
  if (kernel == nullptr) Throw(absl::StatusCode::kUnimplemented, op.name(), ": no kernel on device cpu");
  return kernel;
}

// Inference knows types alone, so what it refuses is told with the layouts.
TensorTypes InferOutputs(const MeshContext& context, const CallKey& key) {
  try {
    return key.op->Infer(key.types, key.attributes);
  } catch (const Error& error) {
    Throw(error.code(), error.message(), "; in ",
          CallText(key.op->name(), key.types, key.layouts, context.mesh()));
  }
}

CallPlan MakePlan(MeshContext& context, const CallKey& key) {
  CheckOperandCount(*key.op, key.types.size());
  CallPlan plan;
  plan.output_types = InferOutputs(context, key);
  plan.strategy = Propagate({.op = key.op,
                             .attributes = key.attributes,
                             .operand_types = key.types,
                             .operand_layouts = key.layouts,
                             .output_types = plan.output_types,
                             .like = key.like},
                            context.mesh(), context.cost_model());
  if (plan.strategy.lowered) return plan;
  for (size_t i = 0; i < key.types.size(); ++i) {
    plan.moves.push_back(plan.strategy.operands[i] != key.layouts[i]);
    plan.operand_boxes.push_back(
        LocalBox(key.types[i].shape, plan.strategy.operands[i], context.mesh(), context.coordinate()));
  }
  for (size_t i = 0; i < plan.output_types.size(); ++i) {
    plan.output_boxes.push_back(
        LocalBox(plan.output_types[i].shape, plan.strategy.outputs[i], context.mesh(), context.coordinate()));
  }
  plan.kernel = KernelFor(*key.op, context.allocator()->device());
  return plan;
}

// Places for the outputs: new tensors, none for views, the overwritten operands for in-place ops.
absl::InlinedVector<Tensor, 4> MakeOutputs(MeshContext& context, const OpDef& op, const CallPlan& plan,
                                           absl::Span<const Tensor> locals) {
  absl::InlinedVector<Tensor, 4> outputs(plan.output_types.size());
  if (op.is_view()) return outputs;
  if (op.in_place()[0] != '\0') {
    int output = 0;
    for (absl::string_view name : absl::StrSplit(op.in_place(), ' ', absl::SkipEmpty())) {
      outputs[output++] = locals[op.FindValue(name)];
    }
    return outputs;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    outputs[i] = Tensor::Empty(context.allocator(), plan.output_types[i].dtype, plan.output_boxes[i].shape);
  }
  return outputs;
}

void MarkInPlaceWrites(const OpDef& op, absl::Span<const DTensor> operands) {
  if (op.in_place()[0] == '\0') return;
  for (absl::string_view name : absl::StrSplit(op.in_place(), ' ', absl::SkipEmpty())) {
    operands[op.FindValue(name)].impl()->MarkWritten(op.name());
  }
}

// Which operands of a call a lowering has made itself; empty outside lowerings. To move them is the op's own
// business, not an implicit redistribution of what its caller passed.
using OwnOperands = absl::InlinedVector<bool, 4>;

DTensors Dispatch(const OpDef& op, absl::Span<const DTensor> operands, const void* attributes,
                  const void* scalars, const Layout* like, const OwnOperands& own);

// One call of the op's kernel on the pieces that lie here, for Emitter::EmitOnPieces.
DTensors CallOnPieces(const OpDef& op, absl::Span<const DTensor> operands, const void* attributes,
                      const void* scalars, int dim, PieceOutputs kind) {
  MeshContext& context = *operands[0].context();
  const DeviceMesh& mesh = context.mesh();
  const Layout& layout = operands[0].layout();
  WEFT_CHECK(!layout.HasPartial(), op.name(), ": pieces of a Partial ", operands[0].ToString());
  TensorTypes types;
  DTensors used;  // keeps the locals alive
  absl::InlinedVector<Tensor, 4> locals;
  std::vector<ShardBox> operand_boxes;
  for (const DTensor& operand : operands) {
    used.push_back(operand.Redistribute(layout));
    locals.push_back(used.back().ToLocal());
    types.push_back({operand.dtype(), locals.back().shape()});
    operand_boxes.push_back(used.back().LocalBox());
  }
  int64_t num_pieces = 1;
  for (int axis : layout.ShardAxes(dim)) num_pieces *= mesh.axis_size(axis);
  std::vector<TensorType> output_types;
  std::vector<ShardBox> output_boxes;
  absl::InlinedVector<Tensor, 4> results;
  for (const TensorType& piece : op.Infer(types, attributes)) {
    TensorType whole = {piece.dtype, operands[0].shape()};
    if (kind == PieceOutputs::kStatistic) whole.shape[dim] = piece.shape[dim] * num_pieces;
    const ShardBox box = LocalBox(whole.shape, layout, mesh, context.coordinate());
    WEFT_CHECK(box.shape == piece.shape, op.name(), ": a piece gives ", piece.ToString(), ", expected ",
               box.shape.ToString());
    results.push_back(Tensor::Empty(context.allocator(), piece.dtype, piece.shape));
    output_types.push_back(whole);
    output_boxes.push_back(box);
  }
  if (const ErasedKernel kernel = KernelFor(op, context.allocator()->device()); kernel != nullptr) {
    const Span span(context.world().tracer(), context.world().rank(), "op", op.name());
    op.Invoke(kernel, {context.kernel_context(), locals, absl::MakeSpan(results), operand_boxes, output_boxes,
                       attributes, scalars});
  }
  DTensors outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    outputs.push_back(DTensor(
        MakeIntrusive<DTensorImpl>(operands[0].context(), layout, output_types[i], std::move(results[i]))));
  }
  return outputs;
}

// Runs a lowering's ops through dispatch, without recording them: the tape holds the op itself.
class LoweringEmitter final : public Emitter {
 public:
  LoweringEmitter(absl::Span<const DTensor> operands, const OwnOperands& own)
      : values_(operands.begin(), operands.end()), own_(own) {
    own_.resize(operands.size(), false);
  }

  TensorType TypeOf(Value value) const override { return values_[value.id].type(); }
  Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                    const void* scalars, int /*like_operand*/) override {
    OwnOperands own;
    for (Value operand : operands) own.push_back(own_[operand.id]);
    return Hold(Dispatch(op, Tensors(operands), attributes, scalars, /*like=*/nullptr, own));
  }
  Values EmitOnPiecesErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                            const void* scalars, int dim, PieceOutputs outputs) override {
    return Hold(CallOnPieces(op, Tensors(operands), attributes, scalars, dim, outputs));
  }
  const DTensor& Get(Value value) const { return values_[value.id]; }

 private:
  DTensors Tensors(absl::Span<const Value> operands) const {
    DTensors tensors;
    for (Value operand : operands) tensors.push_back(values_[operand.id]);
    return tensors;
  }
  Values Hold(DTensors outputs) {
    Values results;
    for (DTensor& output : outputs) {
      results.push_back({static_cast<int32_t>(values_.size())});
      values_.push_back(std::move(output));
      own_.push_back(true);
    }
    return results;
  }

  std::vector<DTensor> values_;
  OwnOperands own_;  // by value
};

DTensors CallLowered(const OpDef& op, absl::Span<const DTensor> operands, const void* attributes,
                     const void* scalars, const OwnOperands& own, bool recorded) {
  DTensors outputs;
  {
    RankState& state = operands[0].context()->state();
    const NoGradGuard no_grad(state);
    const ExplainGuard explained_already(state, nullptr);
    LoweringEmitter emitter(operands, own);
    Values values;
    for (size_t i = 0; i < operands.size(); ++i) values.push_back({static_cast<int32_t>(i)});
    for (Value value : op.Lower(emitter, values, attributes, scalars)) outputs.push_back(emitter.Get(value));
  }
  if (recorded) RecordCall(op, operands, operands, absl::MakeSpan(outputs), attributes, scalars);
  return outputs;
}

// Holds the moves that `plan` makes of what the caller passed to the guards in force.
void CheckImplicitMoves(MeshContext& context, const CallKey& key, const CallPlan& plan,
                        const OwnOperands& own) {
  ImplicitMoves moves(context);
  for (size_t i = 0; i < key.types.size(); ++i) {
    if (!plan.moves[i] || (!own.empty() && own[i])) continue;
    moves.Add(absl::StrCat("operand ", i), key.types[i], key.layouts[i], plan.strategy.operands[i]);
  }
  const auto call = [&] { return CallText(key.op->name(), key.types, key.layouts, context.mesh()); };
  const auto nearest = [&] {
    PropagationTrace trace;
    Propagate({.op = key.op,
               .attributes = key.attributes,
               .operand_types = key.types,
               .operand_layouts = key.layouts,
               .output_types = plan.output_types,
               .like = key.like},
              context.mesh(), context.cost_model(), &trace);
    return NearestLegalLayouts(trace, key.types, key.layouts, context.mesh(), context.cost_model());
  };
  moves.Check(key.op->name(), call, nearest);
}

void ExplainCall(MeshContext& context, const CallKey& key, const void* scalars) {
  Explanation explanation = ExplainErased(*key.op, key.types, key.layouts, key.attributes, scalars, key.like,
                                          context.mesh(), context.cost_model());
  explanation.path = context.state().PathName(context.state().path_id());
  context.state().explanations()->push_back(std::move(explanation));
}

DTensors Dispatch(const OpDef& op, absl::Span<const DTensor> operands, const void* attributes,
                  const void* scalars, const Layout* like, const OwnOperands& own) {
  CheckOperands(op, operands);
  MeshContext& context = *operands[0].context();
  RankState& state = context.state();
  Types types;
  Layouts layouts;
  for (const DTensor& operand : operands) {
    types.push_back(operand.type());
    layouts.push_back(operand.layout());
  }
  const CallKey key{&op, attributes, types, layouts, like};
  const CallPlan* plan = context.cache().Find(key);
  if (plan == nullptr) plan = context.cache().Insert(key, MakePlan(context, key));
  const bool recorded = WantsRecording(op, operands, plan->output_types);
  if (state.explanations() != nullptr) ExplainCall(context, key, scalars);
  if (plan->strategy.lowered) return CallLowered(op, operands, attributes, scalars, own, recorded);
  if (state.implicit_guard() != nullptr) CheckImplicitMoves(context, key, *plan, own);

  DTensors used(operands.begin(), operands.end());
  absl::InlinedVector<Tensor, 4> locals;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (plan->moves[i]) {
      Tensor moved =
          RedistributeLocal(context, operands[i].ToLocal(), types[i], layouts[i], plan->strategy.operands[i]);
      used[i] = DTensor(MakeIntrusive<DTensorImpl>(operands[i].context(), plan->strategy.operands[i],
                                                   types[i], std::move(moved)));
      used[i].impl()->ShareWrites(*operands[i].impl());
      used[i].impl()->regather_from = operands[i].impl()->regather_from;
    }
    locals.push_back(used[i].ToLocal());
  }
  absl::InlinedVector<Tensor, 4> results = MakeOutputs(context, op, *plan, locals);
  if (plan->kernel != nullptr) {
    const Span span(context.world().tracer(), context.world().rank(), "op", op.name());
    op.Invoke(plan->kernel, {context.kernel_context(), locals, absl::MakeSpan(results), plan->operand_boxes,
                             plan->output_boxes, attributes, scalars});
  }
  MarkInPlaceWrites(op, operands);
  DTensors outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    outputs.push_back(DTensor(MakeIntrusive<DTensorImpl>(operands[0].context(), plan->strategy.outputs[i],
                                                         plan->output_types[i], std::move(results[i]))));
    if (op.is_view()) outputs.back().impl()->ShareWrites(*used[0].impl());
  }
  if (recorded) RecordCall(op, operands, used, absl::MakeSpan(outputs), attributes, scalars);
  return outputs;
}

}  // namespace

DTensors CallErased(const OpDef& op, absl::Span<const DTensor> operands, const void* attributes,
                    const void* scalars, const Layout* like) {
  return Dispatch(op, operands, attributes, scalars, like, /*own=*/{});
}

DTensor CreateErased(const OpDef& op, const IntrusivePtr<MeshContext>& context, const Layout& layout,
                     const void* attributes, const void* scalars) {
  const TensorType type = op.Infer({}, attributes)[0];
  WEFT_REQUIRE(!layout.HasPartial(), op.name(), ": cannot create a Partial tensor (",
               layout.ToString(context->mesh()), ") of ", type.ToString(), "; create it as ",
               Layout(type.ndim(), layout.num_axes()).ToString(context->mesh()),
               " and redistribute that, which sends nothing");
  const ShardBox box = LocalBox(type.shape, layout, context->mesh(), context->coordinate());
  Tensor result = Tensor::Empty(context->allocator(), type.dtype, box.shape);
  if (const ErasedKernel kernel = KernelFor(op, context->allocator()->device()); kernel != nullptr) {
    op.Invoke(kernel, {context->kernel_context(),
                       {},
                       absl::MakeSpan(&result, 1),
                       {},
                       absl::MakeConstSpan(&box, 1),
                       attributes,
                       scalars});
  }
  return DTensor(MakeIntrusive<DTensorImpl>(context, layout, type, std::move(result)));
}

}  // namespace weft
