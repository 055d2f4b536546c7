#include "dtensor/call/execute.h"

#include "dtensor/call/call_observer.h"
#include "dtensor/call/launch_kernel.h"
#include "dtensor/redistribution/implicit.h"
#include "ops/op/kernel.h"
#include "ops/sharding/propagate.h"
#include "ops/sharding/propagation_trace.h"

namespace weft {
namespace {

[[noreturn]] void ThrowMixed(const ErasedCall& call, const DeviceMesh& first, const DeviceMesh& other) {
  const bool one_root = first.Root() == other.Root();
  ThrowInvalidArgument(call.op.name(), ": operands lie on different ",
                       one_root ? absl::StrCat("slices of mesh (", first.Root().ToString(), ")") : "meshes",
                       ": ", first.ToString(), " and ", other.ToString(), " in ", call.ToString(),
                       "; redistribute one first");
}

// One kernel reads all operands.
void CheckMemory(const ErasedCall& call, const DTensorRef& operand) {
  const Device first = call.operands[0]->context->allocator()->device();
  const Device own = operand->context->allocator()->device();
  WEFT_REQUIRE(first == own, call.op.name(), ": operand 0 lies on ", DeviceTypeName(first.type), ", operand ",
               &operand - call.operands.data(), " on ", DeviceTypeName(own.type), " in ", call.ToString(),
               "; bring one to the other by ToHost or ToDevice");
}

}  // namespace

// The number of operands is part of the cache key, so only a call without any, which has no context to look in, is refused
// here; another wrong number is a miss, and refused by ResolveCall.
void CheckOperands(const ErasedCall& call) {
  const auto& operands = call.operands;
  if (operands.empty()) CheckOperandCount(call.op, 0);
  for (const DTensorRef& operand : operands) {
    WEFT_REQUIRE(operand.defined(), call.op.name(), ": operand ", &operand - operands.data(),
                 " is undefined (default-constructed)");
    const MeshContext& first = *operands[0]->context;
    if (operand->context == operands[0]->context) continue;
    if (!first.is_member() || !operand->context->is_member()) ThrowAbsent(call);
    if (!(operand->context->mesh() == first.mesh())) ThrowMixed(call, first.mesh(), operand->context->mesh());
    CheckMemory(call, operand);
  }
}

const ResolvedCall& Execution::Plan(const ErasedCall& call) {
  CheckOperands(call);
  return ResolveCall(*call.operands[0]->context, call);
}

void Execution::RunKernel(absl::Span<const DTensor> outputs) const {
  MeshContext& context = *call_.operands[0]->context;
  absl::InlinedVector<Tensor, 6> locals;  // as many as an update has
  for (const DTensorRef operand : used_) locals.push_back(operand->Local());
  const auto run = [&](absl::Span<Tensor> places) {
    LaunchKernel(context, call_.op, plan_.kernel,
                 {.context = context.kernel_context(),
                  .inputs = locals,
                  .outputs = places,
                  .input_boxes = plan_.operand_boxes,
                  .output_boxes = plan_.output_boxes,
                  .erased_attributes = call_.attributes,
                  .erased_scalars = call_.scalars});
  };
  if (outputs.size() == 1) return run(absl::MakeSpan(&outputs[0].impl()->mutable_piece(), 1));
  absl::InlinedVector<Tensor, 4> places;
  for (const DTensor& output : outputs) places.push_back(output.ToLocal());
  run(absl::MakeSpan(places));
  // Kernels of views set their outputs.
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].impl()->mutable_piece() = std::move(places[i]);
}

void Execution::ShowToObserver() const {
  call_.operands[0]->context->state().call_observer()->OnCall(call_, plan_);
}

// The first operand that is the same tensor as operand `i` and moves to the same layout: `i` itself, unless one stands
// twice in the call. Needs plan_.moves[i].
size_t Execution::FirstAlike(size_t i) const {
  for (size_t j = 0; j < i; ++j) {
    if (plan_.moves[j] && call_.operands[j].impl() == call_.operands[i].impl() &&
        plan_.strategy.operands[j] == plan_.strategy.operands[i]) {
      return j;
    }
  }
  return i;
}

// Holds the moves that the plan makes of what the caller passed to the guards in force.
void Execution::CheckImplicitMoves() const {
  MeshContext& context = *call_.operands[0]->context;
  const absl::Span<const TensorType> types = plan_.operand_types;
  const absl::Span<const Layout> layouts = plan_.operand_layouts;
  ImplicitMoves moves(context);
  for (size_t i = 0; i < types.size(); ++i) {
    const bool is_own = own_ != nullptr && !own_->empty() && (*own_)[i];
    if (!plan_.moves[i] || is_own || FirstAlike(i) != i) continue;
    moves.Add(absl::StrCat("operand ", i), types[i], layouts[i], plan_.strategy.operands[i]);
  }
  const auto text = [&] { return CallText(call_.op.name(), types, layouts, context.mesh()); };
  const auto nearest = [&] {
    PropagationTrace trace;
    Propagate({.op = &call_.op,
               .attributes = plan_.attributes.get(),
               .operand_types = types,
               .operand_layouts = layouts,
               .output_types = plan_.output_types,
               .like = call_.like},
              context.mesh(), context.cost_model(), &trace);
    return NearestLegalLayouts(trace, types, layouts, context.mesh(), context.cost_model());
  };
  moves.Check(call_.op.name(), text, nearest);
}

DTensors Execution::RunDecomposed() {
  kept_ = IntrusivePtr<const ResolvedCall>(&plan_);
  return Decompose(call_, own_, Execute);
}

// The operands where the plan wants them: those that must move as new tensors, each once.
void Execution::MoveThem() {
  refs_to_moved_.assign(call_.operands.begin(), call_.operands.end());
  for (size_t i = 0; i < call_.operands.size(); ++i) {
    if (!plan_.moves[i]) continue;
    if (const size_t first = FirstAlike(i); first != i) {
      refs_to_moved_[i] = refs_to_moved_[first];
      continue;
    }
    moved_.push_back(call_.operands[i]->Moved(plan_.strategy.operands[i]));
    refs_to_moved_[i] = moved_.back();
  }
  used_ = refs_to_moved_;
}

DTensors Execute(const ErasedCall& call, const OwnOperands* own) { return Execution(call, own).Run(); }

DTensor ExecuteCreation(const ErasedCall& call, const IntrusivePtr<MeshContext>& context,
                        const Layout& layout) {
  const TensorType type = call.op.Infer({}, call.attributes)[0];
  WEFT_REQUIRE(!layout.HasPartial(), call.op.name(), ": cannot create a Partial tensor (",
               layout.ToString(context->mesh()), ") of ", type.ToString(), "; create it as ",
               Layout(type.ndim(), layout.num_axes()).ToString(context->mesh()),
               " and redistribute that, which sends nothing");
  const ShardBox box = LocalBox(type.shape, layout, context->mesh(), context->coordinate());
  Tensor result = Tensor::Empty(context->allocator(), type.dtype, box.shape);
  LaunchKernel(*context, call.op, KernelFor(call.op, context->allocator()->device()),
               {.context = context->kernel_context(),
                .inputs = {},
                .outputs = absl::MakeSpan(&result, 1),
                .input_boxes = {},
                .output_boxes = absl::MakeConstSpan(&box, 1),
                .erased_attributes = call.attributes,
                .erased_scalars = call.scalars});
  return DTensor(MakeIntrusive<DTensorImpl>(context, layout, type, std::move(result)));
}

}  // namespace weft
