#include "parallel/resolved_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "parallel/entry_meaning.h"
#include "parallel/model_tree.h"
#include "parallel/parameter_claims.h"
#include "parallel/parameter_splits.h"
#include "parallel/parts.h"
#include "parallel/pipeline/cut.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Takes time in proportion to the model, the plan, and what the plan's entries match, together: never to
// modules times parameters, nor to modules times entries.
class Resolver {
 public:
  Resolver(Module& model, const DeviceMesh& mesh, const Plan& plan)
      : mesh_(mesh), plan_(plan), tree_(model), meshes_(tree_.modules().size(), mesh) {
    for (size_t i = 0; i < tree_.modules().size(); ++i) {
      result_.modules.push_back({.path = tree_.module_path(i)});
    }
    for (size_t i = 0; i < tree_.parameters().size(); ++i) {
      result_.parameters.push_back({.path = tree_.parameter_path(i)});
    }
    splits_.resize(tree_.parameters().size());
    accumulates_.resize(tree_.parameters().size(), true);
    units_.resize(tree_.parameters().size());
  }

  ResolvedPlan Run() {
    for (const PlanEntry& entry : plan_.entries()) meanings_.push_back(MeaningOf(entry, tree_));
    Divide();
    buffers_.emplace(tree_, meshes_);
    Claim();
    for (size_t i = 0; i < meanings_.size(); ++i) Apply(plan_.entries()[i], meanings_[i]);
    for (size_t i = 0; i < splits_.size(); ++i) {
      ParameterLayouts& layouts = result_.parameters[i].layouts;
      layouts = CurrentLayouts(i);
      layouts.accumulates_unreduced = accumulates_[i];
    }
    result_.buffers = buffers_->Resolve();
    result_.TakeDTypes();
    CollectUnits();
    CutPipeline();
    const std::vector<int> ranks = result_.pipeline ? result_.pipeline->stage_ranks : std::vector<int>();
    for (int i = 0; ResolvedParameter & of : result_.parameters) {
      of.communication = CommunicationOf(of.path, of.styles, of.stages, ranks, MeshOf(i++));
    }
    return std::move(result_);
  }

 private:
  using ClaimKey = std::pair<std::string, std::string>;
  static ClaimKey KeyOf(const Style& style) { return {style.name, style.axis}; }
  // Gives modules their part of the ranks, if the plan has parts, and looks for the axes of entries there.
  void Divide() {
    std::vector<PartEntry> entries;
    for (size_t i = 0; i < meanings_.size(); ++i) {
      const StyleRules& rules = *meanings_[i].rules;
      if (!rules.makes_parts && !rules.makes_stages) continue;
      CheckAxis(plan_.entries()[i], mesh_);
      has_stages_ |= rules.makes_stages;
      if (rules.makes_parts) entries.push_back({&plan_.entries()[i], &meanings_[i].matches});
    }
    if (!entries.empty()) TakeParts(DivideIntoParts(tree_, mesh_, entries));
    for (size_t i = 0; i < meanings_.size(); ++i) {
      const PlanEntry& entry = plan_.entries()[i];
      const auto& [rules, matches] = meanings_[i];
      if (!rules->has_axis || rules->makes_parts || rules->makes_stages) continue;
      for (const DeviceMesh& mesh : MeshesOf(matches)) CheckAxis(entry, mesh);
    }
  }

  void TakeParts(PartDivision division) {
    NamePartsBelow(tree_, plan_, division, &meanings_);
    for (int i = 0; i < std::ssize(result_.modules); ++i) {
      result_.modules[i].part = division.module_parts[i];
      result_.modules[i].place = division.places[i];
    }
    for (int i = 0; i < std::ssize(result_.parameters); ++i) {
      result_.parameters[i].part = division.module_parts[tree_.owner(i)];
    }
    meshes_ = std::move(division.meshes);
    result_.parts = std::move(division.parts);
  }

  const DeviceMesh& MeshOf(int parameter) const { return meshes_[tree_.owner(parameter)]; }
  // Of what an entry means.
  std::vector<DeviceMesh> MeshesOf(const ModelTree::Matches& matches) const {
    std::vector<DeviceMesh> meshes;
    for (const int module : matches.modules) meshes.push_back(meshes_[module]);
    for (const int parameter : matches.parameters) meshes.push_back(MeshOf(parameter));
    return meshes;
  }

  // Finds which parameters entries that reach below take.
  void Claim() {
    std::vector<bool> is_left_out(splits_.size(), false);
    for (size_t i = 0; i < meanings_.size(); ++i) {
      const PlanEntry& entry = plan_.entries()[i];
      const auto& [rules, matches] = meanings_[i];
      if (rules->leaves_out) {
        for (int parameter : tree_.ParametersBelow(matches)) is_left_out[parameter] = true;
      }
      if (!rules->has_axis || rules->reach != StyleReach::kBelow) continue;
      const StyleSplit split = SplitOf(*rules, entry.style);
      CheckUnits(entry, split, matches);
      claims_.try_emplace(KeyOf(entry.style), tree_)
          .first->second.Mark(matches, {.wrap_from = split.wrap_from, .wrap = split.wrap});
    }
    for (auto& [key, claims] : claims_) {
      claims.Divide([&](int parameter) { return is_left_out[parameter]; });
    }
  }

  // What an entry says of units.
  void CheckUnits(const PlanEntry& entry, const StyleSplit& split, const ModelTree::Matches& matches) const {
    const std::string where = Where(entry);
    WEFT_REQUIRE(split.reshard_to == 0 || split.reshard == Reshard::kAlways, where,
                 ": reshard_to is of units that reshard: expected none with reshard=never");
    WEFT_REQUIRE(split.reshard_to == 0 || !has_stages_, where,
                 ": reshard_to: a pipeline's schedule gathers whole units: expected none with Pipeline");
    for (const DeviceMesh& mesh : MeshesOf(matches)) {
      const int64_t size = mesh.axis_size(mesh.FindAxis(entry.style.axis));
      WEFT_REQUIRE(split.reshard_to == 0 || (split.reshard_to < size && size % split.reshard_to == 0), where,
                   ": reshard_to: expected a divisor of axis '", entry.style.axis, "' (", size,
                   " ranks) above 1 and below it, got ", split.reshard_to);
    }
    WEFT_REQUIRE(split.wrap.empty() || split.wrap_from == 0, where,
                 ": wrap and wrap_from: expected one of them, got both");
    if (split.wrap.empty()) return;
    std::set<std::string> types;
    for (const int module : tree_.ModulesBelow(matches)) types.insert(tree_.module_type(module));
    WEFT_REQUIRE(types.count(split.wrap) > 0, where, ": no module below is of type '", split.wrap,
                 "'; expected one of ", absl::StrJoin(types, ", "));
  }

  static StyleSplit SplitOf(const StyleRules& rules, const Style& style) {
    return rules.split == nullptr ? StyleSplit{} : rules.split(style);
  }

  void Apply(const PlanEntry& entry, const EntryMeaning& meaning) {
    const auto& [rules, matches] = meaning;
    if (!rules->has_axis) return Override(entry.style, meaning);
    const std::string where = Where(entry);
    for (int module : matches.modules) {
      result_.modules[module].styles.push_back(entry.style);
      if (rules->pins != nullptr) PinBorder(*rules, entry.style, module);
    }
    if (rules->makes_parts) return;  // says nothing of how parameters lie
    switch (rules->reach) {
      case StyleReach::kBorder:
        for (int module : matches.modules) {
          for (int parameter : tree_.OwnParameters(module)) Reaches(parameter, entry.style);
        }
        return;
      case StyleReach::kOwn:
        for (int module : matches.modules) SplitOwn(module, *rules, entry.style, where);
        for (int parameter : matches.parameters) {
          WEFT_REQUIRE(SplitDeclared(parameter, *rules, entry.style, where), where, ": parameter '",
                       tree_.parameter_path(parameter),
                       "' declares no dim that this style splits: it declares ",
                       tree_.DeclaredDims({parameter}));
        }
        return;
      case StyleReach::kBelow:
        SplitBelow(meaning, entry.style, where);
        return;
    }
  }

  // A style without an axis.
  void Override(const Style& style, const EntryMeaning& meaning) {
    const auto& [rules, matches] = meaning;
    const bool below = rules->reach == StyleReach::kBelow;
    if (below) {
      Style inherited = style;
      for (const std::string& field : rules->own_fields) inherited.fields.erase(field);
      for (int module : tree_.ModulesBelow(matches)) MergeInto(inherited, &result_.modules[module].styles);
    }
    for (int module : matches.modules) MergeInto(style, &result_.modules[module].styles);
    std::vector<int> parameters = matches.parameters;
    if (below) {
      parameters = tree_.ParametersBelow(matches);
    } else {
      for (int module : matches.modules) {
        const std::vector<int> own = tree_.OwnParameters(module);
        parameters.insert(parameters.end(), own.begin(), own.end());
      }
    }
    for (int parameter : parameters) MergeInto(style, &result_.parameters[parameter].styles);
  }

  // Pins say along one axis where tensors lie at the border, and may say the rule of their gradients.
  void PinBorder(const StyleRules& rules, const Style& style, int module) {
    const bool is_root = module == 0 || result_.modules[module].place == ModulePlace::kPart;
    const StylePins pins = rules.pins(style, is_root);
    const int axis = meshes_[module].FindAxis(style.axis);
    ModuleBorder& border = result_.modules[module].border;
    if (pins.input) border.input.push_back({axis, *pins.input, std::nullopt});
    if (pins.output) border.output.push_back({axis, *pins.output, pins.output_gradient});
    PinEach(pins.inputs, axis, &border.input);
    PinEach(pins.outputs, axis, &border.output);
  }

  static void PinEach(const std::vector<std::optional<Placement>>& placements, int axis,
                      std::vector<BorderPin>* pins) {
    for (int i = 0; i < std::ssize(placements); ++i) {
      if (placements[i]) pins->push_back({axis, *placements[i], std::nullopt, i});
    }
  }

  // A style that splits a module's own parameters does so along the dims that they declare.
  void SplitOwn(int module, const StyleRules& rules, const Style& style, const std::string& where) {
    const std::vector<int> own = tree_.OwnParameters(module);
    bool split = !tree_.modules()[module]->tied().empty() ||  // of a tied head only the border counts
                 tree_.ParametersBelow({.modules = {module}, .parameters = {}}).empty();
    for (int parameter : own) split |= SplitDeclared(parameter, rules, style, where);
    split |= buffers_->Add(module, rules, style, where);
    WEFT_REQUIRE(split, where, ": module '", tree_.module_path(module),
                 "' declares no dim that this style splits: it declares ", tree_.DeclaredDims(own));
  }

  // Returns whether the parameter declares a dim for the style.
  bool SplitDeclared(int parameter, const StyleRules& rules, const Style& style, const std::string& where) {
    Reaches(parameter, style);
    const DeviceMesh& mesh = MeshOf(parameter);
    const int axis = mesh.FindAxis(style.axis);
    const ParameterSpec& spec = tree_.parameters()[parameter]->spec();
    const int dim = rules.own_dim == nullptr ? -1 : rules.own_dim(spec);
    if (dim < 0) return false;
    const int64_t extent = spec.shape[dim];
    WEFT_REQUIRE(!spec.shard_dims.even_split || extent % mesh.axis_size(axis) == 0, where, ": axis '",
                 style.axis, "' of size ", mesh.axis_size(axis), " does not divide the ", extent,
                 " heads (dim ", dim, ") of '", tree_.parameter_path(parameter), "'");
    Add(parameter, {.axis = axis, .dim = dim, .columns = SplitOf(rules, style).columns}, where);
    return true;
  }

  void SplitBelow(const EntryMeaning& meaning, const Style& style, const std::string& where) {
    const StyleSplit rule = SplitOf(*meaning.rules, style);
    const bool marks_modules = !meaning.matches.modules.empty();
    for (const ParameterClaims::Claim& claim : claims_.at(KeyOf(style)).Of(meaning.matches)) {
      Reaches(claim.parameter, style);
      if (!rule.accumulates_unreduced) accumulates_[claim.parameter] = false;
      const Shape& shape = tree_.parameters()[claim.parameter]->spec().shape;
      const int ndim = shape.ndim();
      if (ndim == 0 || !rule.columns.any()) continue;
      WEFT_REQUIRE(!rule.dim || (*rule.dim >= -ndim && *rule.dim < ndim), where, ": '",
                   tree_.parameter_path(claim.parameter), "' ", shape.ToString(), " has no dim ", *rule.dim,
                   "; expected -", ndim, " to ", ndim - 1);
      const int axis = MeshOf(claim.parameter).FindAxis(style.axis);
      ParameterSplit split = {.axis = axis, .columns = rule.columns};
      if (rule.dim) split.dim = *rule.dim < 0 ? *rule.dim + ndim : *rule.dim;
      Add(claim.parameter, split, where);
      // Of the units of several axes the innermost has it: the one registered last of those around it.
      Unit& unit = units_[claim.parameter];
      if (rule.columns.at_rest && !rule.columns.compute && claim.unit >= unit.module) {
        unit = {.module = claim.unit, .rule = rule, .axis = axis, .is_marked = marks_modules};
      }
    }
  }

  void Reaches(int parameter, const Style& style) { result_.parameters[parameter].styles.push_back(style); }

  void Add(int parameter, const ParameterSplit& split, const std::string& where) {
    for (const ParameterSplit& other : splits_[parameter]) {
      WEFT_REQUIRE(other.axis != split.axis, where, ": '", tree_.parameter_path(parameter),
                   "' is already split over axis '", MeshOf(parameter).axis_name(split.axis),
                   "' by another entry (", CurrentLayouts(parameter).gradient->ToString(MeshOf(parameter)),
                   ")");
    }
    splits_[parameter].push_back(split);
  }

  ParameterLayouts CurrentLayouts(int parameter) const {
    return LayoutsOf(tree_.parameters()[parameter]->spec().shape, splits_[parameter], MeshOf(parameter));
  }

  void CollectUnits() {
    std::map<int, ResolvedUnit> by_module;
    for (size_t i = 0; i < units_.size(); ++i) {
      const ParameterLayouts& layouts = result_.parameters[i].layouts;
      if (units_[i].module < 0 || layouts.at_rest == layouts.compute) continue;
      const auto [found, is_new] = by_module.try_emplace(units_[i].module);
      ResolvedUnit& unit = found->second;
      unit.path = tree_.module_path(units_[i].module);
      unit.parameters.push_back(static_cast<int>(i));
      // What an entry says of a module goes before what one says of a single parameter.
      if (!is_new && !units_[i].is_marked) continue;
      unit.reshard = units_[i].rule.reshard;
      unit.reshard_to = units_[i].rule.reshard_to;
      unit.reshard_axis = unit.reshard_to > 0 ? units_[i].axis : -1;
    }
    for (const auto& [module, unit] : by_module) CheckRest(unit);
    for (auto& [module, unit] : by_module) result_.units.push_back(std::move(unit));
  }

  void CutPipeline() {
    const int prefetch = plan_.scheduler().prefetch;
    WEFT_REQUIRE(
        !has_stages_ || result_.units.empty() || prefetch <= SchedulerOptions().prefetch,
        "scheduler, field \"prefetch\": a pipeline's schedule says when units are gathered: expected ",
        "none with Pipeline, got ", prefetch);
    const PlanEntry* cut = nullptr;
    for (size_t i = 0; i < meanings_.size(); ++i) {
      if (!meanings_[i].rules->makes_stages) continue;
      const PlanEntry& entry = plan_.entries()[i];
      WEFT_REQUIRE(!result_.parts, Where(entry),
                   ": the plan has On entries, too: a model is cut into stages or lies on parts, not both");
      WEFT_REQUIRE(cut == nullptr, Where(entry), ": a plan cuts a model once; there is an entry \"",
                   cut->path, "\": ", cut->style.ToString(), " already");
      cut = &entry;
      try {
        TakeCut(CutIntoStages(tree_, meanings_[i].matches, mesh_, entry.style),
                mesh_.FindAxis(entry.style.axis));
      } catch (const Error& error) {
        Throw(error.code(), Where(entry), ": ", error.message());
      }
    }
  }

  void TakeCut(StageCut cut, int axis) {
    result_.pipeline = {
        .axis = axis,
        .stage_ranks = std::move(cut.stage_ranks),
        .first_segments = std::move(cut.first_segments),
    };
    for (size_t i = 0; i < result_.modules.size(); ++i) {
      result_.modules[i].stages = std::move(cut.module_stages[i]);
    }
    for (size_t i = 0; i < result_.parameters.size(); ++i) {
      result_.parameters[i].stages = std::move(cut.parameter_stages[i]);
    }
  }

  void CheckRest(const ResolvedUnit& unit) const {
    for (const int parameter : unit.parameters) {
      const ParameterLayouts& layouts = result_.parameters[parameter].layouts;
      WEFT_REQUIRE(unit.reshard_to == 0 || layouts.at_rest.IsShard(unit.reshard_axis), "reshard_to of unit '",
                   unit.path, "': expected all of its parameters to rest split over axis '",
                   MeshOf(parameter).axis_name(unit.reshard_axis), "', got '",
                   tree_.parameter_path(parameter), "' ", layouts.at_rest.ToString(MeshOf(parameter)));
    }
  }

  struct Unit {
    int module = -1;
    StyleSplit rule = {};
    int axis = -1;
    bool is_marked = false;  // by an entry for modules
  };

  const DeviceMesh& mesh_;
  const Plan& plan_;
  const ModelTree tree_;
  std::vector<DeviceMesh> meshes_;  // of each module: the model's, or its part's
  std::optional<BufferSplits> buffers_;
  ResolvedPlan result_;
  bool has_stages_ = false;
  std::vector<EntryMeaning> meanings_;          // of each entry
  std::map<ClaimKey, ParameterClaims> claims_;  // of styles that reach below
  // Of each parameter.
  std::vector<std::vector<ParameterSplit>> splits_;  // in plan order
  std::vector<bool> accumulates_;
  std::vector<Unit> units_;
};

}  // namespace

int ResolvedPlan::spread_axis() const {
  if (pipeline) return pipeline->axis;
  return parts ? parts->axis : -1;
}

bool ResolvedPlan::IsOn(const std::vector<int>& stages, int part, int64_t index) const {
  if (part >= 0) return parts->parts[part].Has(index);
  if (!pipeline || stages.empty()) return true;
  return std::any_of(stages.begin(), stages.end(),
                     [&](int stage) { return pipeline->stage_ranks[stage] == index; });
}

bool ResolvedPlan::HasPrecision() const {
  return std::any_of(modules.begin(), modules.end(),
                     [](const ResolvedModule& module) { return module.border.input_dtype.has_value(); });
}

ResolvedPlan ResolvePlan(Module& model, const DeviceMesh& mesh, const Plan& plan) {
  return Resolver(model, mesh, plan).Run();
}

}  // namespace weft
