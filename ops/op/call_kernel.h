#ifndef WEFT_OPS_OP_CALL_KERNEL_H_
#define WEFT_OPS_OP_CALL_KERNEL_H_

#include <initializer_list>
#include <type_traits>

#include "absl/types/span.h"
#include "ops/op/kernel_call.h"
#include "ops/op/op.h"

namespace weft {

// Runs the kernel of `op` on the outputs' device, within another kernel: for an op that is several in a row
// there. The boxes that it gets are of tensors that are whole. An output may be an input where the kernel
// goes element by element.
//
// Errors: Unimplemented if there is no such kernel; the kernel's.
void CallKernelErased(const OpDef& op, KernelContext& context, absl::Span<const Tensor> inputs,
                      absl::Span<Tensor> outputs, const void* attributes, const void* scalars);

// The same with the op's attribute types, for one output: CallKernel(kGelu, call.context, {x}, y).
template <class A, class R>
void CallKernel(const Op<A, R>& op, KernelContext& context, std::initializer_list<Tensor> inputs,
                Tensor output, const std::type_identity_t<A>& attributes = {},
                const std::type_identity_t<R>& scalars = {}) {
  CallKernelErased(op, context, absl::Span<const Tensor>(inputs.begin(), inputs.size()),
                   absl::Span<Tensor>(&output, 1), &attributes, &scalars);
}

}  // namespace weft

#endif  // WEFT_OPS_OP_CALL_KERNEL_H_
