#include "parallel/resolved_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "parallel/model_tree.h"
#include "parallel/parameter_claims.h"
#include "parallel/parameter_splits.h"
#include "parallel/pipeline/cut.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Takes time in proportion to the model, the plan, and what the plan's entries match, together: never to
// modules times parameters, nor to modules times entries.
class Resolver {
 public:
  Resolver(Module& model, const DeviceMesh& mesh, const Plan& plan)
      : mesh_(mesh), plan_(plan), tree_(model), buffers_(tree_, mesh) {
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
    Claim();
    for (size_t i = 0; i < meanings_.size(); ++i) Apply(plan_.entries()[i], meanings_[i]);
    for (size_t i = 0; i < splits_.size(); ++i) {
      ParameterLayouts& layouts = result_.parameters[i].layouts;
      layouts = CurrentLayouts(i);
      layouts.accumulates_unreduced = accumulates_[i];
    }
    result_.buffers = buffers_.Resolve();
    TakeDTypes();
    CollectUnits();
    CutPipeline();
    for (ResolvedParameter& of : result_.parameters) {
      of.communication = CommunicationOf(of.path, of.styles, of.layouts, of.stages, mesh_);
    }
    return std::move(result_);
  }

 private:
  using ClaimKey = std::pair<std::string, std::string>;
  static ClaimKey KeyOf(const Style& style) { return {style.name, style.axis}; }
  static std::string Where(const PlanEntry& entry) {
    return absl::StrCat("plan entry \"", entry.path, "\": ", entry.style.ToString());
  }

  // The rules of an entry's style, and what its path means.
  struct Meaning {
    const StyleRules* rules = nullptr;
    ModelTree::Matches matches;
  };

  Meaning MeaningOf(const PlanEntry& entry) const {
    try {
      CheckStyle(entry.style);
    } catch (const Error& error) {
      Throw(error.code(), Where(entry), ": ", error.message());
    }
    const std::string& axis = entry.style.axis;
    Meaning meaning = {.rules = &FindStyle(entry.style.name), .matches = tree_.Match(entry.path)};
    WEFT_REQUIRE(axis.empty() || mesh_.FindAxis(axis) >= 0, Where(entry), ": the mesh (", mesh_.ToString(),
                 ") has no axis '", axis, "'");
    WEFT_REQUIRE(!meaning.matches.empty(), Where(entry),
                 ": no module or parameter matches this path; the nearest is '",
                 tree_.NearestPath(entry.path), "'");
    const bool for_modules = meaning.rules->reach == StyleReach::kBorder;
    WEFT_REQUIRE(!for_modules || meaning.matches.parameters.empty(), Where(entry),
                 ": this style is for modules; the path names a parameter, '",
                 tree_.parameter_path(meaning.matches.parameters[0]), "'");
    return meaning;
  }

  // Finds what every entry means, and which parameters those that reach below take.
  void Claim() {
    std::vector<bool> is_left_out(splits_.size(), false);
    for (const PlanEntry& entry : plan_.entries()) {
      const auto& [rules, matches] = meanings_.emplace_back(MeaningOf(entry));
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
                 ": reshard_to is of units that reshard; reshard is never");
    const int64_t size = mesh_.axis_size(mesh_.FindAxis(entry.style.axis));
    WEFT_REQUIRE(split.reshard_to == 0 || (split.reshard_to < size && size % split.reshard_to == 0), where,
                 ": reshard_to: expected a divisor of axis '", entry.style.axis, "' (", size,
                 " ranks) above 1 and below it");
    WEFT_REQUIRE(split.wrap.empty() || split.wrap_from == 0, where,
                 ": wrap and wrap_from: expected one of them");
    if (split.wrap.empty()) return;
    std::set<std::string> types;
    for (const int module : tree_.ModulesBelow(matches)) types.insert(tree_.module_type(module));
    WEFT_REQUIRE(types.count(split.wrap) > 0, where, ": no module below is of type '", split.wrap,
                 "'; expected one of ", absl::StrJoin(types, ", "));
  }

  static StyleSplit SplitOf(const StyleRules& rules, const Style& style) {
    return rules.split == nullptr ? StyleSplit{} : rules.split(style);
  }

  void Apply(const PlanEntry& entry, const Meaning& meaning) {
    const auto& [rules, matches] = meaning;
    if (!rules->has_axis) return Override(entry.style, meaning);
    const std::string where = Where(entry);
    const int axis = mesh_.FindAxis(entry.style.axis);
    for (int module : matches.modules) {
      result_.modules[module].styles.push_back(entry.style);
      if (rules->pins != nullptr) PinBorder(*rules, entry.style, axis, module);
    }
    switch (rules->reach) {
      case StyleReach::kBorder:
        for (int module : matches.modules) {
          for (int parameter : tree_.OwnParameters(module)) Reaches(parameter, entry.style);
        }
        return;
      case StyleReach::kOwn:
        for (int module : matches.modules) SplitOwn(module, *rules, entry.style, axis, where);
        for (int parameter : matches.parameters) {
          WEFT_REQUIRE(SplitDeclared(parameter, *rules, entry.style, axis, where), where, ": parameter '",
                       tree_.parameter_path(parameter), "' declares no dim that this style splits");
        }
        return;
      case StyleReach::kBelow:
        SplitBelow(meaning, entry.style, axis, where);
        return;
    }
  }

  // A style without an axis: a later entry's fields replace those of an earlier one.
  void Override(const Style& style, const Meaning& meaning) {
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

  static void MergeInto(const Style& style, std::vector<Style>* styles) {
    for (Style& earlier : *styles) {
      if (earlier.name != style.name) continue;
      for (const auto& [field, value] : style.fields) earlier.fields.insert_or_assign(field, value);
      return;
    }
    styles->push_back(style);
  }

  // Pins say along one axis where tensors lie at the border; the gradient rule is Redistribute's unless said
  // here.
  void PinBorder(const StyleRules& rules, const Style& style, int axis, int module) {
    const StylePins pins = rules.pins(style, module == 0);
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
  void SplitOwn(int module, const StyleRules& rules, const Style& style, int axis, const std::string& where) {
    const std::vector<int> own = tree_.OwnParameters(module);
    bool split = own.empty();  // a tied head has none: only its border counts
    for (int parameter : own) split |= SplitDeclared(parameter, rules, style, axis, where);
    buffers_.Add(module, rules, style, where);
    WEFT_REQUIRE(split, where, ": module '", tree_.module_path(module),
                 "' declares no dim that this style splits");
  }

  // Returns whether the parameter declares a dim for the style.
  bool SplitDeclared(int parameter, const StyleRules& rules, const Style& style, int axis,
                     const std::string& where) {
    Reaches(parameter, style);
    const ParameterSpec& spec = tree_.parameters()[parameter]->spec();
    const int dim = rules.own_dim == nullptr ? -1 : rules.own_dim(spec);
    if (dim < 0) return false;
    const int64_t extent = spec.shape[dim];
    WEFT_REQUIRE(!spec.shard_dims.even_split || extent % mesh_.axis_size(axis) == 0, where, ": axis '",
                 mesh_.axis_name(axis), "' of size ", mesh_.axis_size(axis), " does not divide the ", extent,
                 " heads (dim ", dim, ") of '", tree_.parameter_path(parameter), "'");
    Add(parameter, {.axis = axis, .dim = dim, .columns = SplitOf(rules, style).columns}, where);
    return true;
  }

  void SplitBelow(const Meaning& meaning, const Style& style, int axis, const std::string& where) {
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
                   "' is already split over axis '", mesh_.axis_name(split.axis), "' by another entry (",
                   CurrentLayouts(parameter).gradient->ToString(mesh_), ")");
    }
    splits_[parameter].push_back(split);
  }

  ParameterLayouts CurrentLayouts(int parameter) const {
    return LayoutsOf(tree_.parameters()[parameter]->spec().shape, splits_[parameter], mesh_);
  }

  static StyleDTypes DTypesOf(const std::vector<Style>& styles) {
    StyleDTypes all;
    for (const Style& style : styles) {
      const StyleRules& rules = FindStyle(style.name);
      if (rules.dtypes == nullptr) continue;
      const StyleDTypes given = rules.dtypes(style);
      if (given.param) all.param = given.param;
      if (given.reduce) all.reduce = given.reduce;
      if (given.output) all.output = given.output;
      if (given.buffer) all.buffer = given.buffer;
    }
    return all;
  }

  void TakeDTypes() {
    for (ResolvedModule& module : result_.modules) {
      const StyleDTypes dtypes = DTypesOf(module.styles);
      module.border.input_dtype = dtypes.param;
      module.border.output_dtype = dtypes.output;
    }
    for (ResolvedBuffer& buffer : result_.buffers) {
      buffer.dtype = DTypesOf(result_.modules[buffer.module].styles).buffer;
    }
    for (ResolvedParameter& parameter : result_.parameters) {
      const StyleDTypes dtypes = DTypesOf(parameter.styles);
      parameter.compute_dtype = dtypes.param;
      parameter.reduce_dtype = dtypes.reduce;
      for (const Style& style : parameter.styles) {
        const StyleRules& rules = FindStyle(style.name);
        if (rules.memory != nullptr) parameter.memory = rules.memory(style);
      }
    }
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
    const PlanEntry* cut = nullptr;
    for (size_t i = 0; i < meanings_.size(); ++i) {
      if (!meanings_[i].rules->makes_stages) continue;
      const PlanEntry& entry = plan_.entries()[i];
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
                   mesh_.axis_name(unit.reshard_axis), "', got '", tree_.parameter_path(parameter), "' ",
                   layouts.at_rest.ToString(mesh_));
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
  BufferSplits buffers_;
  ResolvedPlan result_;
  std::vector<Meaning> meanings_;               // of each entry
  std::map<ClaimKey, ParameterClaims> claims_;  // of styles that reach below
  // Of each parameter.
  std::vector<std::vector<ParameterSplit>> splits_;  // in plan order
  std::vector<bool> accumulates_;
  std::vector<Unit> units_;
};

}  // namespace

bool ResolvedPlan::IsOn(const std::vector<int>& stages, int64_t index) const {
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
