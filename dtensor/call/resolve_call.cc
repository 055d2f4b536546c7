#include "dtensor/call/resolve_call.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "dtensor/context/propagation_cache.h"
#include "ops/op/kernel.h"
#include "ops/sharding/propagate.h"
#include "ops/sharding/propagation_trace.h"

namespace weft {
namespace {

// Inference knows types alone, so what it refuses is told with the layouts.
TensorTypes InferOutputs(const MeshContext& context, const OpDef& op, const ResolvedCall& plan,
                         const void* attributes) {
  try {
    return op.Infer(plan.operand_types, attributes);
  } catch (const Error& error) {
    Throw(error.code(), error.message(), "; in ",
          CallText(op.name(), plan.operand_types, plan.operand_layouts, context.mesh()));
  }
}

// The numbers of the values that `names` lists.
absl::InlinedVector<int, 4> NumbersOf(const OpDef& op, absl::string_view names) {
  absl::InlinedVector<int, 4> numbers;
  for (absl::string_view name : absl::StrSplit(names, ' ', absl::SkipEmpty())) {
    numbers.push_back(op.FindValue(name));
  }
  return numbers;
}

IntrusivePtr<ResolvedCall> MakePlan(MeshContext& context, const ErasedCall& call) {
  const auto& [op, operands, attributes, scalars, like] = call;
  if (!context.is_member()) ThrowAbsent(call);
  CheckOperandCount(op, operands.size());
  const IntrusivePtr<ResolvedCall> made = MakeIntrusive<ResolvedCall>();
  ResolvedCall& plan = *made;
  for (const DTensorRef operand : operands) {
    plan.operand_types.push_back(operand->type);
    plan.operand_layouts.push_back(operand->layout);
  }
  plan.output_types = InferOutputs(context, op, plan, attributes);
  plan.strategy = Propagate({.op = &op,
                             .attributes = attributes,
                             .operand_types = plan.operand_types,
                             .operand_layouts = plan.operand_layouts,
                             .output_types = plan.output_types,
                             .like = like},
                            context.mesh(), context.cost_model());
  plan.saves = NumbersOf(op, op.saves());
  plan.in_place = NumbersOf(op, op.in_place());
  if (plan.strategy.decomposed) return made;
  for (size_t i = 0; i < operands.size(); ++i) {
    plan.moves.push_back(plan.strategy.operands[i] != plan.operand_layouts[i]);
    plan.moves_any |= plan.moves.back();
    plan.operand_boxes.push_back(LocalBox(plan.operand_types[i].shape, plan.strategy.operands[i],
                                          context.mesh(), context.coordinate()));
  }
  for (size_t i = 0; i < plan.output_types.size(); ++i) {
    plan.output_boxes.push_back(
        LocalBox(plan.output_types[i].shape, plan.strategy.outputs[i], context.mesh(), context.coordinate()));
  }
  plan.kernel = KernelFor(op, context.allocator()->device());
  return made;
}

}  // namespace

void CheckOperandCount(const OpDef& op, size_t count) {
  const absl::string_view names = op.operands();
  const bool any_number = absl::EndsWith(names, "...");
  const size_t expected = std::vector<std::string>(absl::StrSplit(names, ' ', absl::SkipEmpty())).size();
  WEFT_REQUIRE(count > 0 && (any_number || count == expected), op.name(), ": expected ",
               any_number ? "at least 1" : absl::StrCat(expected), " operands (", names, "), got ", count);
}

void ThrowAbsent(const ErasedCall& call) {
  Throw(
      absl::StatusCode::kFailedPrecondition, call.ToString(), ": an operand is absent on rank ",
      call.operands[0]->context->world().rank(),
      ": what a part of a model has made is computed with in a module of that part, or in one that takes it");
}

const ResolvedCall& ResolveCall(MeshContext& context, const ErasedCall& call) {
  CallKey key(call.op, call.attributes, call.like);
  for (const DTensorRef operand : call.operands) key.AddOperand(operand->type, operand->layout);
  if (const ResolvedCall* plan = context.cache().Find(key); plan != nullptr) return *plan;
  return *context.cache().Insert(key, MakePlan(context, call));
}

}  // namespace weft
