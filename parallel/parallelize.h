#ifndef WEFT_PARALLEL_PARALLELIZE_H_
#define WEFT_PARALLEL_PARALLELIZE_H_

#include <string>
#include <vector>

#include "dtensor/context/mesh_context.h"
#include "dtensor/nn/module.h"
#include "mesh/device_mesh.h"
#include "parallel/plan.h"

namespace weft {

// What a plan means for one model on one mesh: resolved, before anything is allocated. A value.
struct ResolvedModule {
  std::string path;
  std::vector<std::string> styles = {};  // as they print
  ModuleBorder border = {};

  bool operator==(const ResolvedModule&) const = default;
};
struct ResolvedParameter {
  std::string path;
  ParameterLayouts layouts;

  bool operator==(const ResolvedParameter&) const = default;
};
struct ResolvedPlan {
  std::vector<ResolvedModule> modules;        // every module of the model, in order of registration
  std::vector<ResolvedParameter> parameters;  // every parameter, in order of registration

  bool operator==(const ResolvedPlan&) const = default;

  // A table: parameter, styles that reach it, shape, layout at rest, layout in compute, elements per rank
  // (largest).
  std::string ToTable(Module& model, const DeviceMesh& mesh) const;
};

// Resolves `plan` against the model's tree. Allocates nothing, communicates nothing.
//
// Errors: InvalidArgument naming the entry: a path that matches no module (with the nearest that exists), an
//         axis that the mesh lacks, a style on a module that declares no dim for it, two styles that split
//         one parameter over the same axis, a head count that the axis does not divide, a dim that a
//         parameter lacks.
ResolvedPlan ResolvePlan(Module& model, const DeviceMesh& mesh, const Plan& plan);

// Applies a plan: resolves it, pins module borders, and gives every parameter its layouts and first value,
// this rank's piece only. A parameter that no entry reaches is Replicate. With an empty plan it is
// Materialize.
//
// Makes the communicators that the plan will need, on every rank in the same order: ranks that run different
// programs afterwards (stages, say) must not meet for the first time in the middle of them.
//
// The context carries mesh, seed and ambient state: bind it with Bind(world, mesh), set its seed, then
// parallelize.
// Errors: as ResolvePlan; FailedPrecondition if the model already has values.
void Parallelize(Module& model, const IntrusivePtr<MeshContext>& context, const Plan& plan,
                 const MaterializeOptions& options = {});

// The same, binding the mesh; returns the new context.
IntrusivePtr<MeshContext> Parallelize(Module& model, World& world, const DeviceMesh& mesh, const Plan& plan,
                                      const MaterializeOptions& options = {});

}  // namespace weft

#endif  // WEFT_PARALLEL_PARALLELIZE_H_
