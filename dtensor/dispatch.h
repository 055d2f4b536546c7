#ifndef WEFT_DTENSOR_DISPATCH_H_
#define WEFT_DTENSOR_DISPATCH_H_

#include <initializer_list>
#include <type_traits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "dtensor/dtensor.h"
#include "ops/op.h"

namespace weft {

using DTensors = absl::InlinedVector<DTensor, 4>;

// Runs an op on DTensors: looks up how (propagation cache), redistributes the operands that must move, runs
// the local kernel, wraps the outputs and records the call on the tape.
//
// Layout: outputs as the op's sharding rule gives them.
// Cost:   the redistributions, all implicit; a cached call without any adds well under 1 us to the kernel.
// Errors: InvalidArgument naming the op, types and layouts; Unimplemented where a device lacks the kernel.
DTensors CallErased(const OpDef& op, absl::Span<const DTensorRef> operands, const void* attributes,
                    const void* scalars, const Layout* like = nullptr);

// Adds `term` to `sum` where `sum` lies, as Add would and with its bits, if nobody could tell: `sum` is the
// only handle of the only tensor in its memory, and lies as the result would. Else does nothing and returns
// false.
bool AddInPlace(const DTensor& sum, const DTensor& term);

// The same for ops without operands, whose context and output layout nothing tells.
DTensor CreateErased(const OpDef& op, const IntrusivePtr<MeshContext>& context, const Layout& layout,
                     const void* attributes, const void* scalars);

// The generic call, for any op including a user's own: Call(kMyOp, {x, w}, {.dim = 1}). The first output of
// several.
template <class A, class R>
DTensor Call(const Op<A, R>& op, std::initializer_list<DTensorRef> operands,
             const std::type_identity_t<A>& attributes = {}, const std::type_identity_t<R>& scalars = {}) {
  return std::move(CallErased(op, operands, &attributes, &scalars)[0]);
}

// The same with all outputs, and any number of operands.
template <class A, class R>
DTensors CallAll(const Op<A, R>& op, absl::Span<const DTensor> operands,
                 const std::type_identity_t<A>& attributes = {},
                 const std::type_identity_t<R>& scalars = {}) {
  return CallErased(op, Borrow(operands), &attributes, &scalars);
}

// An op without operands, making only this rank's piece.
template <class A, class R>
DTensor Create(const Op<A, R>& op, const IntrusivePtr<MeshContext>& context, const Layout& layout,
               const std::type_identity_t<A>& attributes, const std::type_identity_t<R>& scalars = {}) {
  return CreateErased(op, context, layout, &attributes, &scalars);
}

}  // namespace weft

#endif  // WEFT_DTENSOR_DISPATCH_H_
