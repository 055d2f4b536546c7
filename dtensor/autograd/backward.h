// Backward passes: gradients of a loss, of chosen inputs, in one pass or in two halves.

#ifndef WEFT_DTENSOR_AUTOGRAD_BACKWARD_H_
#define WEFT_DTENSOR_AUTOGRAD_BACKWARD_H_

#include <vector>

#include "absl/types/span.h"
#include "dtensor/autograd/backward_pass.h"
#include "dtensor/dtensor.h"

namespace weft {

struct BackwardOptions {
  // What forward saved stays, so that the same history may be used again. Otherwise it goes as backward comes
  // by.
  bool retain_graph = false;
};

// Computes the gradient of `loss` with respect to every leaf that it depends on, and adds it to the leaf's
// grad().
//
// A gradient is the gradient with respect to the *global* value, whatever its layout: nothing is scaled by a
// number of ranks. A leaf's gradient is brought to its at-rest layout once, right after the leaf's last use
// in this pass; for a replicated parameter used on sharded data that is the all-reduce of data parallelism.
//
// Within another pass (in the backward of a node that calls Backward), leaves get theirs from the outermost.
//
// Shape:  `loss` has one element, or `seed` has its shape.
// Cost:   the redistributions of the backward pass, in the ledger under the module paths of the forward.
// Errors: InvalidArgument if `loss` needs no gradient or is not a scalar, or for a seed of another type or on another mesh;
//         FailedPrecondition if its history was used up.
void Backward(const DTensor& loss, const DTensor& seed = DTensor(), const BackwardOptions& options = {});

// The same of several results in one pass: of sum <losses[i], seeds[i]>, whose history is walked once.
// Shape:  a seed for each, undefined for those of one element; none at all if all have one.
void Backward(absl::Span<const DTensor> losses, absl::Span<const DTensor> seeds = {},
              const BackwardOptions& options = {});

// What a call of Grad has put off, to be made up for by RunDeferred: the gradients of all leaves that are not
// among its inputs. It holds what forward saved for them.
class DeferredGradients {
 public:
  bool empty() const { return runs_.empty(); }

  // Computes those gradients, and adds them to the leaves' grad(), as Backward would have.
  // Cost:   the rest of that Backward: no op runs twice but for what a rule computes for several operands at
  //         once (linear_weight_grad, norms).
  // Errors: as of Backward. Empty afterwards.
  void Run();

 private:
  friend std::vector<DTensor> Grad(absl::Span<const DTensor> outputs, absl::Span<const DTensor> inputs,
                                   const struct GradOptions& options);

  IntrusivePtr<MeshContext> context_;
  std::vector<DeferredRun> runs_;
};

struct GradOptions {
  // One for each output, undefined for those of one element; none at all if all have one.
  absl::Span<const DTensor> seeds = {};
  bool retain_graph = false;
  // Records the pass itself, so that what it returns can be differentiated: gradients of gradients. Retains the
  // history.
  bool create_graph = false;
  // An input on which no output depends gets an undefined gradient; otherwise that is an error.
  bool allow_unused = false;
  // Takes what else Backward would do: a pass in two halves, the inputs' gradients now and those of weights
  // when there is time (zero-bubble pipelines). The gradient of an input that is a result of a call is left to it, too,
  // with all that lies behind, and not returned. `create_graph` is off. Empty: what another call has put off has been run.
  DeferredGradients* deferred = nullptr;
};

// The gradients of sum <outputs[i], seeds[i]> with respect to `inputs`, leaves or results of calls; nothing is
// left in any grad(), and only what leads to the inputs is computed.
//
// Layout: of a leaf where its gradient rests; of another input as its value lies, but Partial where the
//         gradient arrives so along an axis where the value is.
// Cost:   the redistributions of that part of the backward pass.
// Errors: InvalidArgument naming an output that needs no gradient, an input that is on no history or on which
//         no output depends, a seed of another type or on another mesh, a `deferred` that is not empty;
//         FailedPrecondition if the history was used up, or, with create_graph, for an op whose gradient has none, by name
//         and with what to compose it of (attention, convolution).
// Source: the semantics of torch.autograd.grad; for `deferred`, Qi et al., "Zero bubble pipeline parallelism",
//         2024.
std::vector<DTensor> Grad(absl::Span<const DTensor> outputs, absl::Span<const DTensor> inputs,
                          const GradOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_AUTOGRAD_BACKWARD_H_
