#include "dtensor/dispatch.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_join.h"
#include "dtensor/call_on_pieces.h"
#include "dtensor/call_plan.h"
#include "dtensor/explain.h"
#include "dtensor/implicit_redistribution.h"
#include "dtensor/redistribute.h"
#include "dtensor/tape.h"
#include "ops/elementwise.h"
#include "ops/kernel.h"
#include "ops/propagate.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

// "matmul(f32[8, 6] [dp, -], f32[6, 4] [-, tp])".
std::string CallText(const OpDef& op, absl::Span<const DTensorRef> operands) {
  const auto append = [](std::string* out, DTensorRef operand) { out->append(operand.Share().ToString()); };
  return absl::StrCat(op.name(), "(", absl::StrJoin(operands, ", ", append), ")");
}

// What every call must check. The number of operands is part of the cache key, so only a call without any,
// which has no context to look in, is refused here; another wrong number is a miss, and refused by PlanCall.
// Errors: InvalidArgument for no operands, an undefined one, or operands on different meshes.
void CheckOperands(const OpDef& op, absl::Span<const DTensorRef> operands) {
  if (operands.empty()) CheckOperandCount(op, 0);
  for (const DTensorRef& operand : operands) {
    WEFT_REQUIRE(operand.defined(), op.name(), ": operand ", &operand - operands.data(),
                 " is undefined (default-constructed)");
    const MeshContext& first = *operands[0]->context;
    WEFT_REQUIRE(operand->context == operands[0]->context || operand->context->mesh() == first.mesh(),
                 op.name(), ": operands lie on different meshes: ", first.mesh().ToString(), " and ",
                 operand->context->mesh().ToString(), " in ", CallText(op, operands),
                 "; redistribute one first");
  }
}

// The outputs, their places not yet written: new tensors, none for views, the overwritten operands for
// in-place ops. This, BeginCall and EndCall are inlined: the calls themselves would be 4% of a cached call.
[[gnu::always_inline]] inline DTensors MakeOutputs(const IntrusivePtr<MeshContext>& context, const OpDef& op,
                                                   const CallPlan& plan,
                                                   absl::Span<const DTensorRef> operands) {
  DTensors outputs;
  for (size_t i = 0; i < plan.output_types.size(); ++i) {
    const TensorType& type = plan.output_types[i];
    Tensor place;
    if (!plan.in_place.empty()) {
      place = operands[plan.in_place[i]]->local;
    } else if (!op.is_view()) {
      place = Tensor::Empty(context->allocator(), type.dtype, plan.output_boxes[i].shape);
    }
    outputs.push_back(
        DTensor(MakeIntrusive<DTensorImpl>(context, plan.strategy.outputs[i], type, std::move(place))));
  }
  return outputs;
}

// Runs the kernel on the local pieces of `operands`, which lie as it wants them, into the outputs' places.
void RunKernel(MeshContext& context, const OpDef& op, const CallPlan& plan,
               absl::Span<const DTensorRef> operands, absl::Span<const DTensor> outputs,
               const void* attributes, const void* scalars) {
  if (plan.kernel == nullptr) return;
  absl::InlinedVector<Tensor, 4> locals;
  for (const DTensorRef operand : operands) locals.push_back(operand->local);
  const auto run = [&](absl::Span<Tensor> places) {
    Tracer* const tracer = context.world().tracer();
    const Span span(tracer, context.world().rank(), "op", tracer == nullptr ? "" : op.name());
    op.Invoke(plan.kernel, {context.kernel_context(), locals, places, plan.operand_boxes, plan.output_boxes,
                            attributes, scalars});
  };
  if (outputs.size() == 1) return run(absl::MakeSpan(&outputs[0].impl()->local, 1));
  absl::InlinedVector<Tensor, 4> places;
  for (const DTensor& output : outputs) places.push_back(output.ToLocal());
  run(absl::MakeSpan(places));
  // Kernels of views set their outputs.
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].impl()->local = std::move(places[i]);
}

// The operands where the plan wants them: those that must move as new tensors, which `owners` keeps.
DTensorRefs MoveOperands(MeshContext& context, const CallPlan& plan, absl::Span<const DTensorRef> operands,
                         DTensors& owners) {
  DTensorRefs used(operands.begin(), operands.end());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!plan.moves[i]) continue;
    DTensorImpl& operand = *operands[i].impl();
    const Layout& to = plan.strategy.operands[i];
    Tensor moved = RedistributeLocal(context, operand.local, operand.type, operand.layout, to);
    owners.push_back(
        DTensor(MakeIntrusive<DTensorImpl>(operand.context, to, operand.type, std::move(moved))));
    used[i] = owners.back();
    used[i]->ShareWrites(operand);
    used[i]->ShareOrigin(operand);
  }
  return used;
}

// Which operands of a call a lowering has made itself; empty outside lowerings. To move them is the op's own
// business, not an implicit redistribution of what its caller passed.
using OwnOperands = absl::InlinedVector<bool, 4>;

DTensors Dispatch(const OpDef& op, absl::Span<const DTensorRef> operands, const void* attributes,
                  const void* scalars, const Layout* like, const OwnOperands& own);

// Runs a lowering's ops through dispatch, without recording them: the tape holds the op itself.
class LoweringEmitter final : public Emitter {
 public:
  LoweringEmitter(absl::Span<const DTensorRef> operands, const OwnOperands& own) : own_(own) {
    for (const DTensorRef operand : operands) values_.push_back(operand.Share());
    own_.resize(operands.size(), false);
  }

  TensorType TypeOf(Value value) const override { return values_[value.id].type(); }
  Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                    const void* scalars, int /*like_operand*/) override {
    OwnOperands own;
    DTensorRefs tensors;
    for (Value operand : operands) {
      own.push_back(own_[operand.id]);
      tensors.push_back(values_[operand.id]);
    }
    return Hold(Dispatch(op, tensors, attributes, scalars, /*like=*/nullptr, own));
  }
  Values EmitOnPiecesErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                            const void* scalars, int dim, PieceOutputs outputs) override {
    DTensors tensors;
    for (Value operand : operands) tensors.push_back(values_[operand.id]);
    return Hold(CallOnPieces(op, tensors, attributes, scalars, dim, outputs));
  }
  const DTensor& Get(Value value) const { return values_[value.id]; }

 private:
  Values Hold(DTensors outputs) {
    Values results;
    for (DTensor& output : outputs) {
      results.push_back({static_cast<int32_t>(values_.size())});
      values_.push_back(std::move(output));
      own_.push_back(true);
    }
    return results;
  }

  absl::InlinedVector<DTensor, 8> values_;
  OwnOperands own_;  // by value
};

DTensors CallLowered(const OpDef& op, const CallPlan& call, absl::Span<const DTensorRef> operands,
                     const void* attributes, const void* scalars, const OwnOperands& own, bool recorded) {
  const IntrusivePtr<const CallPlan> plan(&call);  // what the lowering calls may drive it from the cache
  DTensors outputs;
  {
    RankState& state = operands[0]->context->state();
    const NoGradGuard no_grad(state);
    const ExplainGuard explained_already(state, nullptr);
    LoweringEmitter emitter(operands, own);
    Values values;
    for (size_t i = 0; i < operands.size(); ++i) values.push_back({static_cast<int32_t>(i)});
    for (Value value : op.Lower(emitter, values, attributes, scalars)) outputs.push_back(emitter.Get(value));
  }
  if (recorded) RecordCall(op, *plan, operands, operands, absl::MakeSpan(outputs), scalars);
  return outputs;
}

// Holds the moves that `plan` makes of what the caller passed to the guards in force.
void CheckImplicitMoves(MeshContext& context, const OpDef& op, const CallPlan& plan, const Layout* like,
                        const OwnOperands& own) {
  const absl::Span<const TensorType> types = plan.operand_types;
  const absl::Span<const Layout> layouts = plan.operand_layouts;
  ImplicitMoves moves(context);
  for (size_t i = 0; i < types.size(); ++i) {
    if (!plan.moves[i] || (!own.empty() && own[i])) continue;
    moves.Add(absl::StrCat("operand ", i), types[i], layouts[i], plan.strategy.operands[i]);
  }
  const auto call = [&] { return CallText(op.name(), types, layouts, context.mesh()); };
  const auto nearest = [&] {
    PropagationTrace trace;
    Propagate({.op = &op,
               .attributes = plan.attributes.get(),
               .operand_types = types,
               .operand_layouts = layouts,
               .output_types = plan.output_types,
               .like = like},
              context.mesh(), context.cost_model(), &trace);
    return NearestLegalLayouts(trace, types, layouts, context.mesh(), context.cost_model());
  };
  moves.Check(op.name(), call, nearest);
}

void ExplainCall(MeshContext& context, const OpDef& op, const CallPlan& plan, const void* scalars,
                 const Layout* like) {
  Explanation explanation = ExplainErased(op, plan.operand_types, plan.operand_layouts, plan.attributes.get(),
                                          scalars, like, context.mesh(), context.cost_model());
  explanation.path = context.state().PathName(context.state().path_id());
  context.state().explanations()->push_back(std::move(explanation));
}

struct PlannedCall {
  const CallPlan& plan;  // holds as PlanCall's
  bool recorded;
};

// What comes before anything moves: the call is checked, planned, and held to the guards in force.
[[gnu::always_inline]] inline PlannedCall BeginCall(const OpDef& op, absl::Span<const DTensorRef> operands,
                                                    const void* attributes, const void* scalars,
                                                    const Layout* like, const OwnOperands& own) {
  CheckOperands(op, operands);
  MeshContext& context = *operands[0]->context;
  const RankState& state = context.state();
  const CallPlan& plan = PlanCall(context, op, operands, attributes, like);
  const bool recorded = WantsRecording(op, operands, plan.output_types);
  if (state.explanations() != nullptr) ExplainCall(context, op, plan, scalars, like);
  if (!plan.strategy.lowered && state.implicit_guard() != nullptr) {
    CheckImplicitMoves(context, op, plan, like, own);
  }
  return {plan, recorded};
}

// What comes after the kernel. `used`: the operands where it read them.
[[gnu::always_inline]] inline void EndCall(const OpDef& op, const PlannedCall& call,
                                           absl::Span<const DTensorRef> operands,
                                           absl::Span<const DTensorRef> used, absl::Span<DTensor> outputs,
                                           const void* scalars) {
  for (const int written : call.plan.in_place) operands[written]->MarkWritten(op.name());
  if (op.is_view()) {
    for (const DTensor& output : outputs) output.impl()->ShareWrites(*used[0].impl());
  }
  if (call.recorded) RecordCall(op, call.plan, operands, used, outputs, scalars);
}

DTensors Dispatch(const OpDef& op, absl::Span<const DTensorRef> operands, const void* attributes,
                  const void* scalars, const Layout* like, const OwnOperands& own) {
  // Nothing below plans another call before the last use, but for lowerings, which keep it.
  const PlannedCall call = BeginCall(op, operands, attributes, scalars, like, own);
  const CallPlan& plan = call.plan;
  if (plan.strategy.lowered) return CallLowered(op, plan, operands, attributes, scalars, own, call.recorded);
  const IntrusivePtr<MeshContext>& context = operands[0]->context;
  DTensors moved;
  DTensorRefs refs_to_moved;
  absl::Span<const DTensorRef> used = operands;
  if (plan.moves_any) {
    refs_to_moved = MoveOperands(*context, plan, operands, moved);
    used = refs_to_moved;
  }
  DTensors outputs = MakeOutputs(context, op, plan, used);
  RunKernel(*context, op, plan, used, outputs, attributes, scalars);
  EndCall(op, call, operands, used, absl::MakeSpan(outputs), scalars);
  return outputs;
}

// Calls of one op whose kernel has yet to run, on all of them at once. Not for views.
class CallBatch {
 public:
  CallBatch(const OpDef& op, const void* attributes, size_t num_calls) : op_(op), attributes_(attributes) {
    waiting_.reserve(num_calls);  // they do not move: kernels see views of them
  }

  // A call that is planned; `outputs` gets what it returns, to be read when Run has.
  void Add(const PlannedCall& call, const ErasedEachCall& given, DTensors* outputs) {
    MeshContext& context = *given.operands[0]->context;
    waiting_.push_back({.given = given,
                        .plan = IntrusivePtr<const CallPlan>(&call.plan),
                        .recorded = call.recorded,
                        .outputs = outputs});
    Waiting& waiting = waiting_.back();
    waiting.used = call.plan.moves_any ? MoveOperands(context, call.plan, given.operands, waiting.moved)
                                       : DTensorRefs(given.operands.begin(), given.operands.end());
    *outputs = MakeOutputs(given.operands[0]->context, op_, call.plan, waiting.used);
    for (const DTensorRef operand : waiting.used) waiting.inputs.push_back(operand->local);
    for (const DTensor& output : *outputs) waiting.places.push_back(output.ToLocal());
    for (const Tensor& place : waiting.places) {
      const bool is_first = place.num_elements() == 0 || written_.insert(place.data()).second;
      WEFT_REQUIRE(is_first, op_.name(), ": two of the calls write the same memory; the second is ",
                   CallText(op_, given.operands));
    }
  }

  void Run(BatchKernel kernel) {
    if (waiting_.empty()) return;
    std::vector<KernelCallBase> calls;
    calls.reserve(waiting_.size());
    for (Waiting& call : waiting_) {
      calls.push_back({call.given.operands[0]->context->kernel_context(), call.inputs,
                       absl::MakeSpan(call.places), call.plan->operand_boxes, call.plan->output_boxes,
                       attributes_, call.given.scalars});
    }
    {
      World& world = waiting_[0].given.operands[0]->context->world();
      const Span span(world.tracer(), world.rank(), "op", op_.name());
      kernel(calls);
    }
    for (Waiting& call : waiting_) {
      EndCall(op_, {*call.plan, call.recorded}, call.given.operands, call.used, absl::MakeSpan(*call.outputs),
              call.given.scalars);
    }
  }

 private:
  struct Waiting {
    ErasedEachCall given;
    IntrusivePtr<const CallPlan> plan;
    bool recorded = false;
    DTensors* outputs = nullptr;
    DTensors moved = {};
    DTensorRefs used = {};
    absl::InlinedVector<Tensor, 4> inputs = {};
    absl::InlinedVector<Tensor, 4> places = {};
  };

  const OpDef& op_;
  const void* attributes_;
  std::vector<Waiting> waiting_;
  absl::flat_hash_set<const void*> written_;
};

}  // namespace

DTensors CallErased(const OpDef& op, absl::Span<const DTensorRef> operands, const void* attributes,
                    const void* scalars, const Layout* like) {
  return Dispatch(op, operands, attributes, scalars, like, /*own=*/{});
}

std::vector<DTensors> CallEachErased(const OpDef& op, absl::Span<const ErasedEachCall> calls,
                                     const void* attributes) {
  std::vector<DTensors> results(calls.size());
  if (calls.empty()) return results;
  CheckOperands(op, calls[0].operands);
  const BatchKernel kernel = FindBatchKernel(op, calls[0].operands[0]->context->allocator()->device().type);
  const bool in_place = *op.in_place() != '\0';
  if (kernel == nullptr) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto& [operands, scalars] = calls[i];
      DTensors outputs = Dispatch(op, operands, attributes, scalars, /*like=*/nullptr, /*own=*/{});
      // Dropped at once, the next call gets their handles' memory while it is warm.
      if (!in_place) results[i] = std::move(outputs);
    }
    return results;
  }
  CallBatch batch(op, attributes, calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto& [operands, scalars] = calls[i];
    const PlannedCall call = BeginCall(op, operands, attributes, scalars, /*like=*/nullptr, /*own=*/{});
    if (call.plan.strategy.lowered) {
      results[i] = CallLowered(op, call.plan, operands, attributes, scalars, /*own=*/{}, call.recorded);
    } else {
      batch.Add(call, calls[i], &results[i]);
    }
  }
  batch.Run(kernel);
  if (in_place) results.assign(calls.size(), {});
  return results;
}

bool AddInPlace(const DTensor& sum, const DTensor& term) {
  const DTensorImpl& target = *sum.impl();
  const Tensor& place = target.local;
  const bool is_alone = target.use_count() == 1 && !target.writes && place.buffer()->use_count() == 1 &&
                        place.buffer()->num_bytes() == place.num_bytes() && place.IsContiguous();
  MeshContext& context = *target.context;
  // An explained call is to be seen as a call.
  if (!is_alone || sum.requires_grad() || term.requires_grad() || context.state().explanations() != nullptr) {
    return false;
  }
  const DTensorRef operands[] = {sum, term};
  CheckOperands(kAdd, operands);
  const NoAttributes attributes;
  const NoScalars scalars;
  const CallPlan& plan = PlanCall(context, kAdd, operands, &attributes, /*like=*/nullptr);
  const bool stays = !plan.strategy.lowered && !plan.moves_any && plan.output_types[0] == target.type &&
                     plan.strategy.outputs[0] == target.layout;
  // The kernel reads every element of `sum` before it writes there.
  if (stays) RunKernel(context, kAdd, plan, operands, absl::MakeConstSpan(&sum, 1), &attributes, &scalars);
  return stays;
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
