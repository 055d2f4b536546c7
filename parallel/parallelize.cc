#include "parallel/parallelize.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "dtensor/redistribution/agreement.h"
#include "parallel/plan_groups.h"
#include "parallel/scheduler/data_scheduler.h"

namespace weft {
namespace {

// Where this rank's part of the model lies: the mesh, or of a pipeline the slice that its stages are on.
IntrusivePtr<MeshContext> ContextOfPart(const IntrusivePtr<MeshContext>& context,
                                        const ResolvedPlan& resolved) {
  if (!resolved.pipeline) return context;
  const int axis = resolved.pipeline->axis;
  const DeviceMesh& mesh = context->mesh();
  return Bind(context, mesh.Slice({{mesh.axis_name(axis), context->coordinate()[axis]}}));
}

// Tells parameters of a pipeline whether they are here.
void SpreadOverStages(const IntrusivePtr<MeshContext>& context, const ResolvedPlan& resolved,
                      const std::vector<Parameter*>& parameters) {
  if (!resolved.pipeline) return;
  const int64_t index = context->coordinate()[resolved.pipeline->axis];
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::vector<int>& stages = resolved.parameters[i].stages;
    parameters[i]->set_spread({
        .is_here = resolved.IsOn(stages, index),
        .counts_here = resolved.pipeline->stage_ranks[stages[0]] == index,
        .model_context = context,
    });
  }
}

// The units of parameters that are here, by their numbers among these.
std::vector<ResolvedUnit> UnitsHere(const ResolvedPlan& resolved, const std::vector<Parameter*>& parameters) {
  std::vector<int> numbers(parameters.size(), -1);
  int num_here = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i]->is_here()) numbers[i] = num_here++;
  }
  std::vector<ResolvedUnit> units;
  for (ResolvedUnit unit : resolved.units) {
    for (int& parameter : unit.parameters) parameter = numbers[parameter];
    std::erase(unit.parameters, -1);
    if (!unit.parameters.empty()) units.push_back(std::move(unit));
  }
  return units;
}

}  // namespace

void Parallelize(Module& model, const IntrusivePtr<MeshContext>& context, const Plan& plan,
                 const ParallelizeOptions& options) {
  const std::vector<Parameter*> parameters = model.RegisteredParameters();
  for (const Parameter* parameter : parameters) {
    if (!parameter->materialized()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "Parallelize: parameter '", parameter->path(),
          "' already has a value; a model is materialized once");
  }
  ResolvedPlan resolved = ResolvePlan(model, context->mesh(), plan);
  SpreadOverStages(context, resolved, parameters);
  const IntrusivePtr<MeshContext> part = ContextOfPart(context, resolved);
  const DType compute_dtype = options.compute_dtype.value_or(options.dtype);
  const PlannedGroups groups =
      PlanGroups(model, resolved, part->mesh(), part->cost_model(), options.dtype, compute_dtype);
  for (const AxisList& axes : groups.inline_groups) part->Group(axes);
  for (const auto& [lane, axes] : groups.lane_groups) {
    part->Group(axes, plan.scheduler().overlap ? lane : Lane::kInline);
  }
  CheckSameMachine(*context, "Parallelize");
  const std::vector<Module*> modules = model.AllModules();
  for (size_t i = 0; i < modules.size(); ++i) {
    modules[i]->set_border(std::move(resolved.modules[i].border));
    if (resolved.pipeline &&
        !resolved.IsOn(resolved.modules[i].stages, context->coordinate()[resolved.pipeline->axis])) {
      continue;
    }
    modules[i]->Bind(part);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i]->is_here()) continue;
    parameters[i]->Materialize(part, options.dtype, compute_dtype, resolved.parameters[i].layouts);
  }
  AgreeOnStartValues(*part, model.AllParameters(), options.start_values);
  ScheduleData(model, part, UnitsHere(resolved, parameters), plan.scheduler());
}

IntrusivePtr<MeshContext> Parallelize(Module& model, World& world, const DeviceMesh& mesh, const Plan& plan,
                                      const ParallelizeOptions& options) {
  IntrusivePtr<MeshContext> context = Bind(world, mesh);
  Parallelize(model, context, plan, options);
  return context;
}

}  // namespace weft
