#include "parallel/parallelize.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "dtensor/mesh_transfer.h"
#include "dtensor/nn/segmented_module.h"
#include "dtensor/redistribution/agreement.h"
#include "parallel/plan_groups.h"
#include "parallel/scheduler/data_scheduler.h"

namespace weft {
namespace {

// A model's meshes as this rank sees them.
struct Contexts {
  IntrusivePtr<MeshContext> whole;
  // Of what this rank has of the model: the same, or of a pipeline the slice that its stages are on, or its part.
  IntrusivePtr<MeshContext> own;
  std::vector<IntrusivePtr<MeshContext>> parts;  // all of them
  int part = -1;                                 // the one that this rank has
  int64_t index = 0;                             // this rank's along the axis of stages or parts

  const IntrusivePtr<MeshContext>& Of(const ResolvedModule& module) const {
    if (module.part >= 0) return parts[module.part];
    return module.place == ModulePlace::kWhole ? whole : own;
  }
};

Contexts BindParts(const IntrusivePtr<MeshContext>& context, const ResolvedPlan& resolved) {
  Contexts contexts = {.whole = context, .own = context, .parts = {}};
  const int axis = resolved.spread_axis();
  if (axis < 0) return contexts;
  contexts.index = context->coordinate()[axis];
  if (resolved.pipeline) {
    const DeviceMesh& mesh = context->mesh();
    contexts.own = Bind(context, mesh.Slice({{mesh.axis_name(axis), contexts.index}}));
    return contexts;
  }
  for (const ResolvedPart& part : resolved.parts->parts) {
    contexts.parts.push_back(BindPart(context, part.mesh));
  }
  contexts.part = resolved.parts->PartAt(contexts.index);
  contexts.own = contexts.parts[contexts.part];
  // What all ranks of the model share, made here, where all are: the norm of all parts, what is brought to all.
  context->Group({axis});
  return contexts;
}

// Tells parameters of a model of which ranks have different parts whether they are here.
void SpreadOverRanks(const Contexts& contexts, const ResolvedPlan& resolved,
                     const std::vector<Parameter*>& parameters) {
  const int axis = resolved.spread_axis();
  if (axis < 0) return;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ResolvedParameter& of = resolved.parameters[i];
    const bool is_here = resolved.IsOn(of, contexts.index);
    const bool is_first = of.part < 0 || resolved.parts->parts[of.part].first == contexts.index;
    parameters[i]->set_spread({
        .is_here = is_here,
        .counts_here =
            of.part >= 0 ? is_here : resolved.pipeline->stage_ranks[of.stages[0]] == contexts.index,
        .model_context = contexts.whole,
        .model_axis = axis,
        .adds_to_model = is_first,
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

// What styles without an axis do to the modules that are here, those of one style together.
void ApplyStyles(Module& model, const ResolvedPlan& resolved, const std::vector<Module*>& modules,
                 absl::FunctionRef<bool(int)> is_here) {
  std::vector<std::pair<Style, std::vector<Module*>>> styles;
  for (int i = 0; i < std::ssize(modules); ++i) {
    if (!is_here(i)) continue;
    for (const Style& style : resolved.modules[i].styles) {
      if (FindStyle(style.name).apply == nullptr) continue;
      auto found =
          std::find_if(styles.begin(), styles.end(), [&](const auto& of) { return of.first == style; });
      if (found == styles.end()) found = styles.insert(found, {style, {}});
      found->second.push_back(modules[i]);
    }
  }
  for (const auto& [style, of] : styles) FindStyle(style.name).apply(style, model, of);
}

// The same where ranks have different modules: what is wrong with some is an error on every rank of the model, so that none
// waits for those that have ended. Where the plan has no such style, nothing is said.
void ApplyStylesOnAll(Module& model, MeshContext& whole, const ResolvedPlan& resolved,
                      const std::vector<Module*>& modules, absl::FunctionRef<bool(int)> is_here) {
  const bool applies = absl::c_any_of(resolved.modules, [](const ResolvedModule& module) {
    return absl::c_any_of(module.styles, [](const Style& s) { return FindStyle(s.name).apply != nullptr; });
  });
  const bool is_meta = whole.allocator()->device().type == DeviceType::kMeta;
  if (resolved.spread_axis() < 0 || !applies || is_meta) {
    return ApplyStyles(model, resolved, modules, is_here);
  }
  std::string wrong;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  try {
    ApplyStyles(model, resolved, modules, is_here);
  } catch (const Error& error) {
    wrong = error.message();
    code = error.code();
  }
  for (const std::string& text : GatherTexts(whole, wrong)) {
    if (!text.empty()) Throw(code, text);
  }
}

// What a model was and had before it is spread: taken from it, so that it has no values, and given back at the end: as it was,
// or, after Move, as values alone, where they lie now. One that has no values keeps what its program has said of it.
class EarlierModel {
 public:
  EarlierModel(Module& model, bool has_values)
      : parameters_(model.RegisteredParameters()),
        buffers_(model.RegisteredBuffers()),
        modules_(model.AllModules()),
        segmented_(dynamic_cast<SegmentedModule*>(&model)),
        placed_parameters_(parameters_.size()),
        buffer_values_(buffers_.size()),
        has_buffer_(buffers_.size(), true),
        placed_modules_(modules_.size()) {
    Exchange();
    if (!has_values) PutCopies();
  }
  ~EarlierModel() {
    if (!is_spread_) Exchange();
    // Of what failed, or of what has been moved.
    for (const Parameter::Placed& placed : placed_parameters_) Parameter::Retire(placed);
  }
  EarlierModel(const EarlierModel&) = delete;
  EarlierModel& operator=(const EarlierModel&) = delete;

  // To where the model lies now, on all ranks of `whole`. `among_parts`: whether ranks have, or had, different parts of it.
  void Move(MeshContext& whole, bool among_parts) {
    if (among_parts) {
      MoveAmongParts(whole);
    } else {
      for (size_t i = 0; i < parameters_.size(); ++i) {
        MoveValue(placed_parameters_[i].at_rest, parameters_[i]->at_rest(), "Parallelize");
      }
      for (size_t i = 0; i < buffers_.size(); ++i) {
        MoveValue(buffer_values_[i], buffers_[i]->Value(), "Parallelize");
      }
    }
  }

  // The model lies as it is to: nothing is given back.
  void SetSpread() { is_spread_ = true; }

 private:
  void MoveAmongParts(MeshContext& whole) {
    std::vector<std::pair<std::string, DTensor>> from, to;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const std::string path = parameters_[i]->path();
      if (placed_parameters_[i].at_rest.defined()) from.emplace_back(path, placed_parameters_[i].at_rest);
      if (parameters_[i]->is_here()) to.emplace_back(path, parameters_[i]->at_rest());
    }
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const std::string path = buffers_[i]->path();
      if (buffer_values_[i].defined()) from.emplace_back(path, buffer_values_[i]);
      if (buffers_[i]->is_here()) to.emplace_back(path, buffers_[i]->Value());
    }
    MoveByName(whole, from, to, /*may_cast=*/true, "Parallelize");
  }

  // Puts what is kept here into the model, and keeps what was there.
  void Exchange() {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      placed_parameters_[i] = parameters_[i]->ExchangePlaced(std::move(placed_parameters_[i]));
    }
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffer_values_[i] = buffers_[i]->ExchangeValue(std::move(buffer_values_[i]));
      const bool is_here = buffers_[i]->is_here();
      buffers_[i]->set_is_here(has_buffer_[i]);
      has_buffer_[i] = is_here;
    }
    for (size_t i = 0; i < modules_.size(); ++i) {
      placed_modules_[i] = modules_[i]->ExchangePlaced(std::move(placed_modules_[i]));
    }
    if (segmented_ == nullptr) return;
    groups_ = segmented_->ExchangeRecomputedSegments(std::move(groups_));
    stages_ = segmented_->ExchangeStages(std::move(stages_));
  }

  // Puts what is kept here into the model, which has no values, and keeps it all the same.
  void PutCopies() {
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->ExchangePlaced(placed_parameters_[i]);
    for (size_t i = 0; i < modules_.size(); ++i) modules_[i]->ExchangePlaced(placed_modules_[i]);
    if (segmented_ == nullptr) return;
    segmented_->ExchangeRecomputedSegments(groups_);
    segmented_->ExchangeStages(stages_);
  }

  const std::vector<Parameter*> parameters_;
  const std::vector<ModuleBuffer*> buffers_;
  const std::vector<Module*> modules_;
  SegmentedModule* const segmented_;
  std::vector<Parameter::Placed> placed_parameters_;
  std::vector<DTensor> buffer_values_;
  std::vector<bool> has_buffer_;  // whether it is, or was, here
  std::vector<Module::Placed> placed_modules_;
  std::vector<RecomputedSegments> groups_;
  std::optional<ModelStages> stages_;
  bool is_spread_ = false;
};

bool HasValues(Module& model) {
  const auto has_value = [](const auto* slot) { return slot->materialized(); };
  return absl::c_any_of(model.AllParameters(), has_value) || absl::c_any_of(model.AllBuffers(), has_value) ||
         // On a rank whose part has no parameters.
         (PartsOf(model) != nullptr && model.AllParameters().empty());
}

void CheckMaySpreadAgain(Module& model, const MeshContext& context) {
  const auto check = [](absl::string_view kind, const auto& slots) {
    for (const auto* slot : slots) {
      if (slot->materialized()) continue;
      Throw(absl::StatusCode::kFailedPrecondition, "Parallelize: ", kind, " '", slot->path(),
            "' has no value, and others of the model have");
    }
  };
  check("parameter", model.AllParameters());
  check("buffer", model.AllBuffers());
  const ModelParts* const parts = PartsOf(model);
  const IntrusivePtr<MeshContext>& whole = parts != nullptr ? parts->context : model.context();
  if (whole->shared_state() != context.shared_state()) {
    Throw(
        absl::StatusCode::kFailedPrecondition,
        "Parallelize: the model has values, of another ambient state; bind the mesh by Bind(context, mesh), "
        "with the model's context");
  }
  if (!HaveSameRanks(whole->mesh(), context.mesh())) {
    Throw(absl::StatusCode::kFailedPrecondition, "Parallelize: the model has values on mesh (",
          whole->mesh().ToString(), "); expected a mesh of the same ranks, got (", context.mesh().ToString(),
          ")");
  }
}

// Of modules that are here.
void MaterializeBuffers(Module& model, const Contexts& contexts, const ResolvedPlan& resolved, DType dtype) {
  size_t index = 0;
  for (ModuleBuffer* buffer : model.RegisteredBuffers()) {
    const ResolvedBuffer& entry = resolved.buffers[index++];
    if (resolved.spread_axis() >= 0) {
      buffer->set_is_here(resolved.IsOn(resolved.modules[entry.module], contexts.index));
    }
    if (!buffer->is_here()) continue;
    buffer->Materialize(contexts.own, entry.dtype.value_or(ModuleBuffer::DefaultDType(dtype)), entry.layout);
  }
}

}  // namespace

namespace {

// `segmented`: the model, if it has stages.
void AgreeOnAllStartValues(Module& model, MeshContext& whole, MeshContext& part, SegmentedModule* segmented,
                           const ModelStages& stages, StartValues values) {
  // What stages have in common is compared first, where ranks of several differ; what one stage broadcasts to the others its own
  // replicas have already.
  const bool compares = values == StartValues::kCompare;
  if (segmented != nullptr && compares) AgreeAcrossStages(*segmented, stages, values);
  AgreeOnStartValues(whole, part, model.AllParameters(), model.AllBuffers(), values);
  if (segmented != nullptr && !compares) AgreeAcrossStages(*segmented, stages, values);
}

// Of a model that has no values.
void Spread(Module& model, const IntrusivePtr<MeshContext>& context, const Plan& plan,
            const ResolvedPlan& resolved, const ParallelizeOptions& options) {
  const std::vector<Parameter*> parameters = model.RegisteredParameters();
  const Contexts contexts = BindParts(context, resolved);
  const IntrusivePtr<MeshContext>& part = contexts.own;
  if (part->mesh().num_ranks() < context->mesh().num_ranks()) part->set_has_part_of_model();
  SpreadOverRanks(contexts, resolved, parameters);
  const DType compute_dtype = options.compute_dtype.value_or(options.dtype);
  const PlannedGroups groups = PlanGroups(model, resolved, contexts.part, part->mesh(), part->cost_model(),
                                          options.dtype, compute_dtype);
  part->state().link_turns()->Set(plan.scheduler().lane_priority);
  for (const AxisList& axes : groups.inline_groups) part->Group(axes);
  for (const auto& [lane, axes] : groups.lane_groups) {
    part->Group(axes, plan.scheduler().overlap ? lane : Lane::kInline);
  }
  const std::vector<Module*> modules = model.AllModules();
  const auto is_here = [&](int module) { return resolved.IsOn(resolved.modules[module], contexts.index); };
  const bool casts_inputs = resolved.HasPrecision();
  for (int i = 0; i < std::ssize(modules); ++i) {
    ModuleBorder border = resolved.modules[i].border;
    if (casts_inputs && !border.input_dtype) border.input_dtype = compute_dtype;
    modules[i]->set_border(std::move(border));
    modules[i]->set_place(resolved.modules[i].place);
    // Of other parts, too: ranks that do not run them know where they lie.
    if (is_here(i) || resolved.parts) modules[i]->Bind(contexts.Of(resolved.modules[i]));
  }
  if (resolved.parts) model.set_parts(ModelParts{.context = context, .axis = resolved.parts->axis});
  ApplyStylesOnAll(model, *context, resolved, modules, is_here);
  for (size_t i = 0; i < parameters.size(); ++i) {
    // Of one that is elsewhere the dtype alone is known: a rank without any parameter joins in the sums of the others'.
    parameters[i]->set_reduce_dtype(options.dtype);
    if (!parameters[i]->is_here()) continue;
    const ResolvedParameter& parameter = resolved.parameters[i];
    parameters[i]->set_memory(parameter.memory);
    parameters[i]->Materialize(part, options.dtype, parameter.compute_dtype.value_or(compute_dtype),
                               parameter.layouts);
    parameters[i]->set_reduce_dtype(parameter.reduce_dtype.value_or(options.dtype));
  }
  MaterializeBuffers(model, contexts, resolved, options.dtype);
  ModelStages model_stages;
  if (resolved.pipeline) {
    model_stages = {ModelParts{.context = context, .axis = resolved.pipeline->axis},
                    resolved.pipeline->stage_ranks, resolved.pipeline->first_segments};
  }
  auto* const segmented = resolved.pipeline ? &dynamic_cast<SegmentedModule&>(model) : nullptr;
  AgreeOnAllStartValues(model, *context, *part, segmented, model_stages, options.start_values);
  const std::vector<std::vector<int>> stages = StagesHere(resolved, parameters);
  const std::vector<ResolvedUnit> units = UnitsHere(resolved, parameters, stages);
  std::vector<ParameterCommunication> communication;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i]->is_here()) communication.push_back(resolved.parameters[i].communication);
  }
  if (segmented == nullptr) return ScheduleData(model, part, units, communication, plan.scheduler());
  model_stages.data =
      ScheduleStageData(model, part, units, communication, stages, model_stages, plan.scheduler());
  segmented->set_stages(std::move(model_stages));
}

}  // namespace

void Parallelize(Module& model, const IntrusivePtr<MeshContext>& context, const Plan& plan,
                 const ParallelizeOptions& options) {
  const ResolvedPlan resolved = ResolvePlan(model, context->mesh(), plan);
  // Before any group is made: which ones, and the order, follow from the Machine.
  CheckSameMachine(*context, "Parallelize");
  const bool has_values = HasValues(model);
  if (has_values) CheckMaySpreadAgain(model, *context);
  const bool among_parts = PartsOf(model) != nullptr || resolved.spread_axis() >= 0;
  EarlierModel earlier(model, has_values);
  ParallelizeOptions how = options;
  if (has_values) how.start_values = StartValues::kTrust;
  Spread(model, context, plan, resolved, how);
  if (has_values) earlier.Move(*context, among_parts);
  earlier.SetSpread();
}

void MoveState(NamedTensors from, NamedTensors to) { MoveByName(from, to, "MoveState"); }

void MoveState(NamedTensors from, NamedTensors to, MeshContext& whole) {
  MoveByName(whole, from, to, /*may_cast=*/false, "MoveState");
}

IntrusivePtr<MeshContext> Parallelize(Module& model, World& world, const DeviceMesh& mesh, const Plan& plan,
                                      const ParallelizeOptions& options) {
  IntrusivePtr<MeshContext> context = Bind(world, mesh);
  Parallelize(model, context, plan, options);
  return context;
}

}  // namespace weft
