#ifndef WEFT_MESH_REDISTRIBUTION_BOUND_H_
#define WEFT_MESH_REDISTRIBUTION_BOUND_H_

#include <cstdint>

#include "mesh/device_mesh.h"
#include "mesh/layout.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// Bytes that the worst rank must receive in any plan from `from` to `to`, whatever its steps.
//
// Without reductions: the elements of its new piece that it does not hold. Where terms must be reduced, the
// larger of
//   - its new piece, of which it holds no whole element, and
//   - the mean over the ranks that share a term's place: to join t terms of an element takes t-1 receipts, to
//     bring it to h holders h-1 more.
// The second is what all-reduce and reduce-scatter reach. An axis that becomes Partial counts as Replicate.
//
// Errors: InvalidArgument if layouts, shape and mesh do not fit.
int64_t RedistributionBound(const Layout& from, const Layout& to, const TensorType& type,
                            const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_MESH_REDISTRIBUTION_BOUND_H_
