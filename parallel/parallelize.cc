#include "parallel/parallelize.h"

#include <utility>
#include <vector>

#include "dtensor/redistribution/agreement.h"
#include "parallel/plan_groups.h"
#include "parallel/scheduler/data_scheduler.h"

namespace weft {

void Parallelize(Module& model, const IntrusivePtr<MeshContext>& context, const Plan& plan,
                 const ParallelizeOptions& options) {
  const std::vector<Parameter*> parameters = model.AllParameters();
  for (const Parameter* parameter : parameters) {
    if (!parameter->materialized()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "Parallelize: parameter '", parameter->path(),
          "' already has a value; a model is materialized once");
  }
  ResolvedPlan resolved = ResolvePlan(model, context->mesh(), plan);
  const DType compute_dtype = options.compute_dtype.value_or(options.dtype);
  const PlannedGroups groups =
      PlanGroups(model, resolved, context->mesh(), context->cost_model(), options.dtype, compute_dtype);
  for (const AxisList& axes : groups.inline_groups) context->Group(axes);
  for (const auto& [lane, axes] : groups.lane_groups) {
    context->Group(axes, plan.scheduler().overlap ? lane : Lane::kInline);
  }
  CheckSameMachine(*context, "Parallelize");
  const std::vector<Module*> modules = model.AllModules();
  for (size_t i = 0; i < modules.size(); ++i) {
    modules[i]->Bind(context);
    modules[i]->set_border(std::move(resolved.modules[i].border));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->Materialize(context, options.dtype, compute_dtype, resolved.parameters[i].layouts);
  }
  AgreeOnStartValues(*context, parameters, options.start_values);
  ScheduleData(model, context, resolved.units, plan.scheduler());
}

IntrusivePtr<MeshContext> Parallelize(Module& model, World& world, const DeviceMesh& mesh, const Plan& plan,
                                      const ParallelizeOptions& options) {
  IntrusivePtr<MeshContext> context = Bind(world, mesh);
  Parallelize(model, context, plan, options);
  return context;
}

}  // namespace weft
