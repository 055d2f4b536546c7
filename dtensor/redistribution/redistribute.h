#ifndef WEFT_DTENSOR_REDISTRIBUTION_REDISTRIBUTE_H_
#define WEFT_DTENSOR_REDISTRIBUTION_REDISTRIBUTE_H_

#include <memory>

#include "dtensor/context/mesh_context.h"
#include "mesh/layout.h"
#include "mesh/redistribution/lowering.h"
#include "runtime/tensor/tensor.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// PlanRedistribution, lowered for this rank, from the context's redistribution cache. Needs from != to.
std::shared_ptr<const LoweredRedistribution> LowerCached(MeshContext& context, const TensorType& type,
                                                         const Layout& from, const Layout& to);

// Carries out PlanRedistribution on this rank's piece of a tensor of `type`: no autograd, no handles. The
// plan, lowered for this rank, is kept in the context's redistribution cache. Returns a view where nothing
// moves. Collectives are written to the ledger under the rank state's purpose and path.
//
// Threads: every rank of the mesh calls it alike.
Tensor RedistributeLocal(MeshContext& context, const Tensor& local, const TensorType& type,
                         const Layout& from, const Layout& to);

}  // namespace weft

#endif  // WEFT_DTENSOR_REDISTRIBUTION_REDISTRIBUTE_H_
