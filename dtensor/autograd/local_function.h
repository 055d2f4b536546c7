#ifndef WEFT_DTENSOR_AUTOGRAD_LOCAL_FUNCTION_H_
#define WEFT_DTENSOR_AUTOGRAD_LOCAL_FUNCTION_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/dispatch.h"
#include "dtensor/dtensor.h"

namespace weft {

// The border between DTensors and code on this rank's pieces alone: a kernel of one's own, another library.
// What crosses it has a layout in both directions, and all four are stated: nothing is inferred, since
// whether a gradient made from a piece is the whole of it (Replicate) or a part (Partial) only its author
// knows.
//
//   operand used as              its gradient, where the function is ...
//   Shard(d)                     Shard(d)
//   Replicate, beside pieces     Partial: each rank has seen its pieces alone
//   Replicate, beside replicas   Replicate
//   output as                    the gradient that arrives
//   Shard(d)                     Shard(d)
//   Replicate                    Replicate: the gradient of the one value, the same on every rank
//   Partial(sum)                 Replicate: every term adds to the value, so has its whole gradient

// How an operand enters.
struct LocalOperand {
  Layout layout;    // the operand is redistributed to it, and its piece handed over
  Layout gradient;  // how the gradient that `backward` returns for it lies
};

// How an output leaves.
struct LocalOutput {
  TensorType type;  // global
  Layout layout;    // how the piece that `forward` returns lies
  Layout gradient;  // the gradient is redistributed to it before `backward` gets its piece
};

// What backward gets: pieces. `operands` and `outputs` as in forward; `gradients` of the outputs, zeros where
// none arrived.
struct LocalGradients {
  absl::Span<const Tensor> operands;
  absl::Span<const Tensor> outputs;
  absl::Span<const Tensor> gradients;
};

// A function of pieces, one node on the tape.
struct LocalFunction {
  std::string name;
  std::vector<LocalOperand> operands;
  std::vector<LocalOutput> outputs;
  std::function<std::vector<Tensor>(absl::Span<const Tensor> operands)> forward;
  // A gradient an operand; a default-constructed Tensor for one that has none. Null: not differentiable.
  std::function<std::vector<Tensor>(const LocalGradients&)> backward;
  // Compares what is said to be Replicate across the ranks, outputs in forward and gradients in backward: a
  // gradient that is declared Replicate and is a part differs from rank to rank. For finding that; it costs
  // an all-gather of 8 bytes per rank for each.
  bool check_replicas = false;
};

// Runs it on the operands' pieces.
//
// Cost:   the redistributions to the declared layouts, where operands and gradients lie otherwise; explicit.
//         All operands' and outputs' pieces are kept until backward.
// Errors: InvalidArgument naming the function: a wrong number of operands, outputs or gradients, a piece that
//         is not what the layout gives this rank or not on its device, replicas that differ.
//         FailedPrecondition if an operand wants a gradient and there is no backward, or one lies as a
//         Partial that is no sum.
DTensors CallLocal(const LocalFunction& function, absl::Span<const DTensor> operands);

}  // namespace weft

#endif  // WEFT_DTENSOR_AUTOGRAD_LOCAL_FUNCTION_H_
