// Spreads a model over a mesh, as a plan says.

#ifndef WEFT_PARALLEL_PARALLELIZE_H_
#define WEFT_PARALLEL_PARALLELIZE_H_

#include <optional>

#include "dtensor/context/mesh_context.h"
#include "dtensor/nn/module.h"
#include "mesh/device_mesh.h"
#include "parallel/plan.h"
#include "parallel/resolved_plan.h"
#include "parallel/start_values.h"
#include "parallel/value_moves.h"

namespace weft {

struct ParallelizeOptions {
  DType dtype = DType::kF32;                          // of parameters at rest, gradients and optimizer state
  std::optional<DType> compute_dtype = std::nullopt;  // of forward and backward; `dtype` if not given
  StartValues start_values = StartValues::kCompare;   // what becomes of replicas whose first values differ
};

// Applies a plan: resolves it, pins module borders, and gives every parameter its layouts and first value,
// this rank's piece only; buffers, too (parallel/buffer_splits.h). A parameter that no entry reaches is Replicate. With an empty plan it is
// Materialize.
//
// Of a plan that cuts the model into stages (Pipeline) a rank gets those of its coordinate: they lie on the slice of
// the mesh there, which is what their modules' context() is of. Modules and parameters of other stages stay specs
// (Parameter::is_here).
//
// Of a plan that places modules on parts of the mesh (On) a rank gets its part, which lies on the part's mesh: that is what
// context() of its modules is of, on ranks outside of it, too. The model's own context() is of the whole mesh.
//
// A model that has values is spread anew: by another plan, on the same mesh or another one of the same ranks. Values of
// parameters and buffers are moved, and cast to options.dtype; hooks stay; gradients are let go, start_values are not asked.
// Optimizers were made for how it lay before: make them after, and give them their state by MoveState. Between steps,
// with no graph that is still to be differentiated. Bind another mesh by Bind(context, mesh): the ambient state stays the
// same. Either plan may cut the model into stages or place modules on parts. A PipelineExecutor serves only the stages that it
// was made for. Stages may have one buffer with values of their own: where the new plan has other stages or none, it takes
// the first stage's.
//
// Makes the communicators that the plan will need, on every rank in the same order: ranks that run different
// programs afterwards (stages, say) must not meet for the first time in the middle of them. Before that it checks, by one
// small all-gather, that the ranks' contexts have the same Machine, from which the groups follow.
//
// The context carries mesh, seed and ambient state: bind it with Bind(world, mesh), set its seed, then
// parallelize.
// Cost:   AgreeOnStartValues and AgreeAcrossStages (parallel/start_values.h), and CheckSameMachine, once.
//         Of a model that has values: of each value one redistribution, to where it rests; until all are there, memory of both.
//         With stages or parts, before or after, besides that as MoveByName (parallel/value_moves.h).
// Errors: as ResolvePlan; as CheckSameMachine; FailedPrecondition if ranks that hold the same piece of a parameter begin
//         with other values, naming it and them; if the model has values, but some of its parameters or buffers have none, or its
//         context has another ambient state or other ranks; what styles say of the modules; ResourceExhausted.
//         Other first values, and what styles say, are the same error on every rank. The model is as it was then, whatever the error.
void Parallelize(Module& model, const IntrusivePtr<MeshContext>& context, const Plan& plan,
                 const ParallelizeOptions& options = {});

// State that an optimizer, or whatever names its tensors, had before Parallelize spread the model anew (Optimizer::State),
// into that of one made after: by name, in place.
// Cost:   one redistribution each.
// Errors: as MoveByName (parallel/value_moves.h).
void MoveState(NamedTensors from, NamedTensors to);

// The same where ranks have different parts of the model, before or after: stages, or those of On. Every rank calls it with
// what it has.
// `whole`: of all ranks of the model, such as the context that was given to Parallelize.
// Cost:   as MoveByName. Errors, too: on every rank alike.
void MoveState(NamedTensors from, NamedTensors to, MeshContext& whole);

// The same as the first, binding the mesh; returns the new context.
IntrusivePtr<MeshContext> Parallelize(Module& model, World& world, const DeviceMesh& mesh, const Plan& plan,
                                      const ParallelizeOptions& options = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_PARALLELIZE_H_
