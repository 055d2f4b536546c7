#ifndef WEFT_DTENSOR_DISPATCH_H_
#define WEFT_DTENSOR_DISPATCH_H_

#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/call/erased_call.h"
#include "dtensor/call/execute.h"
#include "dtensor/dtensor.h"
#include "ops/op/op.h"

namespace weft {

// Runs an op on DTensors: looks up how (propagation cache), redistributes the operands that must move, runs
// the local kernel, wraps the outputs and records the call on the tape.
//
// Layout: outputs as the op's sharding rule gives them.
// Cost:   the redistributions, all implicit; a cached call without any adds well under 1 us to the kernel.
// Errors: InvalidArgument naming the op, types and layouts; Unimplemented where a device lacks the kernel.
DTensors CallErased(const ErasedCall& call);

// One of several calls, types of its run-time scalars erased: see CallEach.
struct ErasedEachCall {
  absl::Span<const DTensorRef> operands;
  const void* scalars = nullptr;
};

// As CallErased for each of `calls`; see CallEach.
std::vector<DTensors> CallEachErased(const OpDef& op, absl::Span<const ErasedEachCall> calls,
                                     const void* attributes);

// The generic call, for any op including a user's own: Call(kMyOp, {x, w}, {.dim = 1}). The first output of
// several.
template <class A, class R>
DTensor Call(const Op<A, R>& op, std::initializer_list<DTensorRef> operands,
             const std::type_identity_t<A>& attributes = {}, const std::type_identity_t<R>& scalars = {}) {
  return std::move(
      CallErased({.op = op, .operands = operands, .attributes = &attributes, .scalars = &scalars})[0]);
}

// The same with all outputs, and any number of operands.
template <class A, class R>
DTensors CallAll(const Op<A, R>& op, absl::Span<const DTensor> operands,
                 const std::type_identity_t<A>& attributes = {},
                 const std::type_identity_t<R>& scalars = {}) {
  const DTensorRefs borrowed = Borrow(operands);
  return CallErased({.op = op, .operands = borrowed, .attributes = &attributes, .scalars = &scalars});
}

// One of several calls: its operands, and its own run-time scalars.
template <class R = NoScalars>
struct EachCall {
  DTensorRefs operands;
  R scalars = {};
};

// The outputs of many calls of one op, each planned, moved, checked and recorded as if it stood alone, and
// with the same bits. A device that has a batch kernel of the op (ops/op/kernel.h) runs them all at once,
// when what they move has moved:
//   CallEach(kSgdUpdate, {{.operands = {p0, g0, s}, .scalars = {...}}, {.operands = {p1, g1, s}, ...}});
// The calls are independent: none writes what another touches. Ops in place return no outputs, but as many
// empty lists as there are calls: their outputs are their operands.
//
// Cost:   as of single calls; what they move and make lives until the last of them has run.
// Errors: those of single calls, of which others may have run before; InvalidArgument, on such a device,
//         where two calls write the same memory.
template <class A, class R>
std::vector<DTensors> CallEach(const Op<A, R>& op, absl::Span<const EachCall<std::type_identity_t<R>>> calls,
                               const std::type_identity_t<A>& attributes = {}) {
  std::vector<ErasedEachCall> erased;
  erased.reserve(calls.size());
  for (const EachCall<R>& call : calls) erased.push_back({call.operands, &call.scalars});
  return CallEachErased(op, erased, &attributes);
}

// An op without operands, making only this rank's piece.
template <class A, class R>
DTensor Create(const Op<A, R>& op, const IntrusivePtr<MeshContext>& context, const Layout& layout,
               const std::type_identity_t<A>& attributes, const std::type_identity_t<R>& scalars = {}) {
  return ExecuteCreation({.op = op, .operands = {}, .attributes = &attributes, .scalars = &scalars}, context,
                         layout);
}

}  // namespace weft

#endif  // WEFT_DTENSOR_DISPATCH_H_
