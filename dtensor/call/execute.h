#ifndef WEFT_DTENSOR_CALL_EXECUTE_H_
#define WEFT_DTENSOR_CALL_EXECUTE_H_

#include <initializer_list>
#include <type_traits>
#include <utility>

#include "absl/types/span.h"
#include "dtensor/call/decomposition.h"
#include "dtensor/call/erased_call.h"
#include "dtensor/call/resolve_call.h"
#include "dtensor/context/resolved_call.h"
#include "dtensor/dtensor.h"
#include "ops/op/op.h"

namespace weft {

// What every call checks of its operands before it is planned. A function that makes the result of a call by other means
// checks the same.
//
// Errors: InvalidArgument for no operands, an undefined one, or operands on different meshes or devices; ThrowAbsent's.
void CheckOperands(const ErasedCall& call);

// One call of an op on its way from operands to outputs: planned when it is constructed, run by Run. Knows no
// tape: dispatch records what it is asked to record, and what the tape and decompositions call is never
// recorded.
//
// Lifetime: the call's operands, attributes and scalars must outlive it.
// Errors:   the constructor's: InvalidArgument for no operands, an undefined one, operands on different
//           meshes, and what ResolveCall refuses. Run's: those of the guards in force, and the kernel's.
//
// The small functions are inlined: calls of them would be 4% of a cached call.
class Execution {
 public:
  [[gnu::always_inline]] explicit Execution(const ErasedCall& call, const OwnOperands* own = nullptr)
      : call_(call), own_(own), plan_(Plan(call)), used_(call.operands) {}
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  const ErasedCall& call() const { return call_; }
  // Holds as ResolveCall's while nothing else is planned; a decomposed call keeps it.
  const ResolvedCall& plan() const { return plan_; }
  bool is_decomposed() const { return plan_.strategy.decomposed; }
  // The operands where the kernel read them, once it has run.
  absl::Span<const DTensorRef> used() const { return used_; }

  // The whole call.
  [[gnu::always_inline]] DTensors Run() {
    CheckGuards();
    if (is_decomposed()) return RunDecomposed();
    MoveOperands();
    DTensors outputs = MakeOutputs();
    RunKernel(absl::MakeConstSpan(outputs));
    Finish(absl::MakeSpan(outputs));
    return outputs;
  }

  // Its parts, for callers that do something between them; in this order, for calls that are not decomposed.
  // Shows the call to its observer, and holds what would move to the guards in force.
  [[gnu::always_inline]] void CheckGuards() {
    const RankState& state = call_.operands[0]->context->state();
    if (state.call_observer() != nullptr) ShowToObserver();
    if (!is_decomposed() && state.implicit_guard() != nullptr) CheckImplicitMoves();
  }
  [[gnu::always_inline]] void MoveOperands() {
    if (plan_.moves_any) MoveThem();
  }
  // The outputs, their places not yet written: new tensors, none for views, the overwritten operands for
  // in-place ops.
  [[gnu::always_inline]] DTensors MakeOutputs() const {
    const IntrusivePtr<MeshContext>& context = call_.operands[0]->context;
    DTensors outputs;
    for (size_t i = 0; i < plan_.output_types.size(); ++i) {
      const TensorType& type = plan_.output_types[i];
      Tensor place;
      if (!plan_.in_place.empty()) {
        place = used_[plan_.in_place[i]]->Local();
      } else if (!call_.op.is_view()) {
        place = Tensor::Empty(context->allocator(), type.dtype, plan_.output_boxes[i].shape);
      }
      outputs.push_back(
          DTensor(MakeIntrusive<DTensorImpl>(context, plan_.strategy.outputs[i], type, std::move(place))));
    }
    return outputs;
  }
  // Runs the kernel on the local pieces of the operands into the outputs' places.
  void RunKernel(absl::Span<const DTensor> outputs) const;
  // What comes after the kernel: notes what was written in place, shares that log with views, and notes of what can be made
  // again of a parameter's copy what it is made of.
  [[gnu::always_inline]] void Finish(absl::Span<DTensor> outputs) const {
    for (const int written : plan_.in_place) call_.operands[written]->MarkWritten(call_.op.name());
    if (!call_.op.is_view() && !call_.op.is_remade()) return;
    if (call_.op.is_view()) {
      for (const DTensor& output : outputs) output.impl()->ShareWrites(*used_[0].impl());
    }
    if (used_[0]->origin) [[unlikely]] {
      for (size_t i = 0; i < outputs.size(); ++i) {
        outputs[i].impl()->SetViewOrigin(*used_[0].impl(), call_.op, plan_, call_.scalars,
                                         static_cast<int>(i));
      }
    }
  }

 private:
  static const ResolvedCall& Plan(const ErasedCall& call);
  void ShowToObserver() const;
  void CheckImplicitMoves() const;
  DTensors RunDecomposed();
  size_t FirstAlike(size_t i) const;
  void MoveThem();

  const ErasedCall call_;
  const OwnOperands* own_;
  const ResolvedCall& plan_;
  // A decomposed call's plan, which its calls may drive from the cache.
  IntrusivePtr<const ResolvedCall> kept_;
  DTensors moved_;
  DTensorRefs refs_to_moved_;
  absl::Span<const DTensorRef> used_;
};

// Runs a call and records nothing: for the tape, decompositions and whatever else lies below dispatch.
DTensors Execute(const ErasedCall& call, const OwnOperands* own = nullptr);

// The same with types: Execute(kCast, {x}, {.dtype = DType::kF32}). The first output of several.
template <class A, class R>
DTensor Execute(const Op<A, R>& op, std::initializer_list<DTensorRef> operands,
                const std::type_identity_t<A>& attributes = {}, const std::type_identity_t<R>& scalars = {}) {
  return std::move(
      Execute({.op = op, .operands = operands, .attributes = &attributes, .scalars = &scalars})[0]);
}

// A call without operands, which could tell neither context nor output layout.
// Errors: InvalidArgument for a Partial layout.
DTensor ExecuteCreation(const ErasedCall& call, const IntrusivePtr<MeshContext>& context,
                        const Layout& layout);

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_EXECUTE_H_
