#ifndef WEFT_PARALLEL_PARALLELIZE_H_
#define WEFT_PARALLEL_PARALLELIZE_H_

#include "dtensor/context/mesh_context.h"
#include "dtensor/nn/module.h"
#include "mesh/device_mesh.h"
#include "parallel/plan.h"
#include "parallel/resolved_plan.h"

namespace weft {

// Applies a plan: resolves it, pins module borders, and gives every parameter its layouts and first value,
// this rank's piece only. A parameter that no entry reaches is Replicate. With an empty plan it is
// Materialize.
//
// Makes the communicators that the plan will need, on every rank in the same order: ranks that run different
// programs afterwards (stages, say) must not meet for the first time in the middle of them. Over them it checks that
// the ranks' contexts have the same Machine, by one small all-gather.
//
// The context carries mesh, seed and ambient state: bind it with Bind(world, mesh), set its seed, then
// parallelize.
// Errors: as ResolvePlan; as CheckSameMachine; FailedPrecondition if the model already has values.
void Parallelize(Module& model, const IntrusivePtr<MeshContext>& context, const Plan& plan,
                 const MaterializeOptions& options = {});

// The same, binding the mesh; returns the new context.
IntrusivePtr<MeshContext> Parallelize(Module& model, World& world, const DeviceMesh& mesh, const Plan& plan,
                                      const MaterializeOptions& options = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_PARALLELIZE_H_
