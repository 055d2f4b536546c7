#include "parallel/parallelize.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "dtensor/nn/segmented_module.h"
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

// Of each parameter that is here, the stages that have it.
std::vector<std::vector<int>> StagesHere(const ResolvedPlan& resolved,
                                         const std::vector<Parameter*>& parameters) {
  std::vector<std::vector<int>> stages;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i]->is_here()) stages.push_back(resolved.parameters[i].stages);
  }
  return stages;
}

// The units of parameters that are here, by their numbers among these; `stages` as StagesHere says.
std::vector<ResolvedUnit> UnitsHere(const ResolvedPlan& resolved, const std::vector<Parameter*>& parameters,
                                    const std::vector<std::vector<int>>& stages) {
  std::vector<int> numbers(parameters.size(), -1);
  int num_here = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i]->is_here()) numbers[i] = num_here++;
  }
  std::vector<ResolvedUnit> units;
  for (ResolvedUnit unit : resolved.units) {
    for (int& parameter : unit.parameters) parameter = numbers[parameter];
    std::erase(unit.parameters, -1);
    // What stages have in common with different others goes its own ways.
    std::map<std::vector<int>, std::vector<int>> by_stages;
    for (const int parameter : unit.parameters) by_stages[stages[parameter]].push_back(parameter);
    for (auto& [of, of_stages] : by_stages) {
      units.push_back(unit);
      units.back().parameters = std::move(of_stages);
    }
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
  const std::vector<std::vector<int>> stages = StagesHere(resolved, parameters);
  const std::vector<ResolvedUnit> units = UnitsHere(resolved, parameters, stages);
  if (!resolved.pipeline) return ScheduleData(model, part, units, plan.scheduler());
  ModelStages model_stages = {.context = context,
                              .axis = resolved.pipeline->axis,
                              .stage_ranks = resolved.pipeline->stage_ranks,
                              .first_segments = resolved.pipeline->first_segments};
  model_stages.data = ScheduleStageData(model, part, units, stages, model_stages, plan.scheduler());
  dynamic_cast<SegmentedModule&>(model).set_stages(std::move(model_stages));
}

IntrusivePtr<MeshContext> Parallelize(Module& model, World& world, const DeviceMesh& mesh, const Plan& plan,
                                      const ParallelizeOptions& options) {
  IntrusivePtr<MeshContext> context = Bind(world, mesh);
  Parallelize(model, context, plan, options);
  return context;
}

}  // namespace weft
