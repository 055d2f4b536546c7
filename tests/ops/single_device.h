#ifndef WEFT_TESTS_OPS_SINGLE_DEVICE_H_
#define WEFT_TESTS_OPS_SINGLE_DEVICE_H_

#include <memory>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "mesh/shard_math.h"
#include "ops/op/emitter.h"
#include "ops/op/op.h"
#include "runtime/base/thread_pool.h"
#include "runtime/device/allocator.h"
#include "runtime/tensor/tensor.h"
#include "tools/rules/local_kernel.h"

namespace weft {

// The box of the piece [range.offset, +size) of one dim of a tensor.
ShardBox SplitBox(const Shape& shape, int dim, Range range);
// The tensor itself as a piece, and a row-major copy of that piece.
Piece WholePiece(const Tensor& tensor);
Piece SplitPiece(const Tensor& whole, int dim, Range range);

// Runs ops on the CPU, whole and at once, with no dtensor layer: every call is inference, allocation, kernel.
// Owns all the tensors that it has seen or made.
//
// Errors: the op's own; Unimplemented, naming the op, if it has no CPU kernel; Internal if what a kernel of a
//         view returns is not of the inferred type.
class SingleDevice final : public Emitter {
 public:
  explicit SingleDevice(int num_threads = 1);

  Value Add(const Tensor& tensor);
  const Tensor& Get(Value value) const;

  TensorType TypeOf(Value value) const override;
  Values EmitErased(const OpDef& op, absl::Span<const Value> operands, const void* attributes,
                    const void* scalars, int like_operand) override;

  // RunKernel with this device's threads and memory.
  std::vector<Tensor> RunPieces(const OpDef& op, absl::Span<const Piece> operands,
                                absl::Span<const ShardBox> output_boxes, const void* attributes,
                                const void* scalars);

 private:
  ThreadPool pool_;
  std::shared_ptr<Allocator> allocator_;
  std::vector<Tensor> tensors_;
};

// One call on whole tensors: all outputs.
std::vector<Tensor> RunErased(const OpDef& op, absl::Span<const Tensor> operands, const void* attributes,
                              const void* scalars, int num_threads = 1);
// The same by the op's decomposition instead of its kernel.
std::vector<Tensor> RunDecomposedErased(const OpDef& op, absl::Span<const Tensor> operands,
                                        const void* attributes, const void* scalars);

// Runs the op, then its backward rule on `output_gradients` (undefined where nothing reached an output).
// `wanted` says per operand whether its gradient is wanted; empty: all floating operands'. The result has one
// gradient an operand, undefined where the rule delivered none.
//
// Errors: Internal if the rule reads a value that `saves` does not list, or delivers a gradient that is not
//         wanted, is of another type than the operand, or comes twice.
std::vector<Tensor> RunBackwardErased(const OpDef& op, absl::Span<const Tensor> operands,
                                      absl::Span<const Tensor> output_gradients, const void* attributes,
                                      const void* scalars, const std::vector<bool>& wanted = {});

// The same with attribute types: RunAll(kNorm, {x, w}, {.epsilon = 1e-5}); RunOp returns the first output.
template <class A, class R>
std::vector<Tensor> RunAll(const Op<A, R>& op, const std::vector<Tensor>& operands,
                           const std::type_identity_t<A>& attributes = {},
                           const std::type_identity_t<R>& scalars = {}, int num_threads = 1) {
  return RunErased(op, operands, &attributes, &scalars, num_threads);
}

template <class A, class R>
Tensor RunOp(const Op<A, R>& op, const std::vector<Tensor>& operands,
             const std::type_identity_t<A>& attributes = {}, const std::type_identity_t<R>& scalars = {},
             int num_threads = 1) {
  return RunErased(op, operands, &attributes, &scalars, num_threads)[0];
}

// The kernel alone on one rank's pieces: RunSharded(kEmbedding, {ids, SplitPiece(table, 0, {3, 2})}, {box of
// y}).
template <class A, class R>
std::vector<Tensor> RunSharded(const Op<A, R>& op, const std::vector<Piece>& operands,
                               const std::vector<ShardBox>& output_boxes,
                               const std::type_identity_t<A>& attributes = {},
                               const std::type_identity_t<R>& scalars = {}) {
  return SingleDevice().RunPieces(op, operands, output_boxes, &attributes, &scalars);
}

// Gradients of all floating operands.
template <class A, class R>
std::vector<Tensor> Backward(const Op<A, R>& op, const std::vector<Tensor>& operands,
                             const std::vector<Tensor>& output_gradients,
                             const std::type_identity_t<A>& attributes = {},
                             const std::type_identity_t<R>& scalars = {}) {
  return RunBackwardErased(op, operands, output_gradients, &attributes, &scalars);
}

}  // namespace weft

#endif  // WEFT_TESTS_OPS_SINGLE_DEVICE_H_
