#ifndef WEFT_OPS_SHAPE_JOIN_PIECES_H_
#define WEFT_OPS_SHAPE_JOIN_PIECES_H_

#include "absl/functional/function_ref.h"
#include "ops/op/kernel_call.h"
#include "ops/shape/concat.h"
#include "ops/shape/stack.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// The kernels of concat and stack, but for how a device copies a tensor of any strides to one of its shape.
using CopyFunction = absl::FunctionRef<void(const Tensor& from, const Tensor& to)>;

// Each operand's piece goes where it meets this rank's part of y; what no piece here meets is another rank's.
void ConcatPieces(const ConcatAttributes& a, const KernelCallBase& call, CopyFunction copy);

// Each operand goes to its place along the new dim; zeros where none stands.
void StackPieces(const StackAttributes& a, const KernelCallBase& call, CopyFunction copy);

}  // namespace weft

#endif  // WEFT_OPS_SHAPE_JOIN_PIECES_H_
