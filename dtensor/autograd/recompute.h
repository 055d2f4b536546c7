// Memory for time: what a function computes in between is computed again in backward, and not kept until then.

#ifndef WEFT_DTENSOR_AUTOGRAD_RECOMPUTE_H_
#define WEFT_DTENSOR_AUTOGRAD_RECOMPUTE_H_

#include <functional>

#include "dtensor/dtensor.h"
#include "dtensor/tape/kept_results.h"

namespace weft {

// Calls `function` on `inputs` and returns what it returns, whose history is one node: of all that the function computes
// the tape keeps the inputs, and the results of calls of the ops in `keep`. Backward runs the function again, on the same
// inputs and with the same random bits, and goes through that. Of its inputs all but one may be undefined, of its outputs any.
//
// `function` does the same whenever it runs: it depends on its inputs, on parameters, and on what does not change
// before backward; it is kept, with what it captures, until the history goes. Values that it captures have gradients,
// too. It may call Recompute itself. Gradients have the bits that they have without Recompute, but where an input or a
// captured value is used outside too: terms are summed in another order then.
//
// Cost:   the function once more in backward, but for the calls that are kept, with its collectives; while it runs,
//         there and in forward, what it would otherwise have kept. Where gradients are off, nothing.
// Errors: in backward FailedPrecondition if the function makes other types or layouts than in forward, if an input or a
//         parameter has been written to in between, and for gradients of gradients (create_graph).
// Source: Chen et al., "Training deep nets with sublinear memory cost", 2016; the semantics of
//         torch.utils.checkpoint.checkpoint with use_reentrant=False, and of its selective form.
DTensors Recompute(std::function<DTensors(const DTensors&)> function, const DTensors& inputs,
                   const KeptOps& keep = KeptOps());

}  // namespace weft

#endif  // WEFT_DTENSOR_AUTOGRAD_RECOMPUTE_H_
