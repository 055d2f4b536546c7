#include "parallel/parallelize.h"

#include <utility>
#include <vector>

#include "parallel/plan_groups.h"

namespace weft {

void Parallelize(Module& model, const IntrusivePtr<MeshContext>& context, const Plan& plan,
                 const MaterializeOptions& options) {
  const std::vector<Parameter*> parameters = model.AllParameters();
  for (const Parameter* parameter : parameters) {
    if (!parameter->materialized()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "Parallelize: parameter '", parameter->path(),
          "' already has a value; a model is materialized once");
  }
  ResolvedPlan resolved = ResolvePlan(model, context->mesh(), plan);
  const DType compute_dtype = options.compute_dtype.value_or(options.dtype);
  for (const AxisList& axes :
       PlanGroups(model, resolved, context->mesh(), context->cost_model(), compute_dtype)) {
    context->Group(axes);
  }
  const std::vector<Module*> modules = model.AllModules();
  for (size_t i = 0; i < modules.size(); ++i) {
    modules[i]->Bind(context);
    modules[i]->set_border(std::move(resolved.modules[i].border));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->Materialize(context, options.dtype, compute_dtype, resolved.parameters[i].layouts);
  }
}

IntrusivePtr<MeshContext> Parallelize(Module& model, World& world, const DeviceMesh& mesh, const Plan& plan,
                                      const MaterializeOptions& options) {
  IntrusivePtr<MeshContext> context = Bind(world, mesh);
  Parallelize(model, context, plan, options);
  return context;
}

}  // namespace weft
