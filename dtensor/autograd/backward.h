#ifndef WEFT_DTENSOR_AUTOGRAD_BACKWARD_H_
#define WEFT_DTENSOR_AUTOGRAD_BACKWARD_H_

#include "dtensor/dtensor.h"

namespace weft {

// Computes the gradient of `loss` with respect to every leaf that it depends on, and adds it to the leaf's
// grad().
//
// A gradient is the gradient with respect to the *global* value, whatever its layout: nothing is scaled by a
// number of ranks. A leaf's gradient is brought to its at-rest layout once, right after the leaf's last use
// in this pass; for a replicated parameter used on sharded data that is the all-reduce of data parallelism.
//
// Shape:  `loss` has one element, or `seed` has its shape.
// Cost:   the redistributions of the backward pass, in the ledger under the module paths of the forward.
// Errors: InvalidArgument if `loss` needs no gradient or is not a scalar; FailedPrecondition if its history
//         was used up.
void Backward(const DTensor& loss, const DTensor& seed = DTensor());

}  // namespace weft

#endif  // WEFT_DTENSOR_AUTOGRAD_BACKWARD_H_
