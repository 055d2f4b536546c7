#include "parallel/resolved_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "mesh/shard_math.h"
#include "parallel/model_tree.h"
#include "parallel/parameter_claims.h"
#include "parallel/parameter_splits.h"

namespace weft {
namespace {

// How far below its module a style reaches.
enum class Reach : uint8_t {
  kBorder,  // its input and output alone
  kOwn,     // its own parameters
  kBelow,   // all parameters below that no inner entry of the same style and axis has
};

Reach ReachOf(Style::Kind kind) {
  switch (kind) {
    case Style::Kind::kColumnParallel:
    case Style::Kind::kRowParallel:
    case Style::Kind::kVocabParallel:
      return Reach::kOwn;
    case Style::Kind::kSequenceParallel:
      return Reach::kBorder;
    case Style::Kind::kDataParallel:
    case Style::Kind::kFullyShard:
      return Reach::kBelow;
  }
  return Reach::kBorder;
}

// The dim of a parameter that a style of Reach::kOwn splits, or -1.
int SplitDim(const ShardDims& dims, Style::Kind kind) {
  if (kind == Style::Kind::kColumnParallel) return dims.column;
  return kind == Style::Kind::kRowParallel ? dims.row : dims.vocabulary;
}

SplitColumns ColumnsOf(const Style& style) {
  if (ReachOf(style.kind) == Reach::kOwn) {
    return {.at_rest = true, .compute = true, .gradient = true, .state = true};
  }
  const bool is_unit = style.kind == Style::Kind::kFullyShard;
  const bool split = is_unit || style.shard_state;
  return {.at_rest = is_unit, .compute = false, .gradient = split, .state = split};
}

bool AccumulatesUnreduced(const Style& style) {
  return style.kind != Style::Kind::kFullyShard && !style.shard_gradient;
}

// Takes time in proportion to the model, the plan, and what the plan's entries match, together: never to
// modules times parameters, nor to modules times entries.
class Resolver {
 public:
  Resolver(Module& model, const DeviceMesh& mesh, const Plan& plan) : mesh_(mesh), plan_(plan), tree_(model) {
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
    for (size_t i = 0; i < plan_.entries().size(); ++i) Apply(plan_.entries()[i], matches_[i]);
    for (size_t i = 0; i < splits_.size(); ++i) {
      ParameterLayouts& layouts = result_.parameters[i].layouts;
      layouts = CurrentLayouts(i);
      layouts.accumulates_unreduced = accumulates_[i];
    }
    CollectUnits();
    return std::move(result_);
  }

 private:
  using ClaimKey = std::pair<Style::Kind, std::string>;
  static ClaimKey KeyOf(const Style& style) { return {style.kind, style.axis}; }

  // Finds what every entry means, and which parameters those that reach below take.
  void Claim() {
    for (const PlanEntry& entry : plan_.entries()) {
      matches_.push_back(tree_.Match(entry.path));
      if (ReachOf(entry.style.kind) != Reach::kBelow) continue;
      claims_.try_emplace(KeyOf(entry.style), tree_)
          .first->second.Mark(matches_.back(), entry.style.wrap_from);
    }
    for (auto& [key, claims] : claims_) claims.Divide([](int) { return false; });
  }

  void Apply(const PlanEntry& entry, const ModelTree::Matches& matches) {
    const std::string where = absl::StrCat("plan entry \"", entry.path, "\": ", entry.style.ToString());
    const int axis = mesh_.FindAxis(entry.style.axis);
    WEFT_REQUIRE(axis >= 0, where, ": the mesh (", mesh_.ToString(), ") has no axis '", entry.style.axis,
                 "'");
    WEFT_REQUIRE(entry.style.kind == Style::Kind::kFullyShard || !entry.style.dim, where,
                 ": only FullyShard takes a dim");
    if (matches.empty()) {
      ThrowInvalidArgument(where, ": no module and no parameter matches this path; the nearest is '",
                           tree_.NearestPath(entry.path), "'");
    }
    for (int module : matches.modules) {
      result_.modules[module].styles.push_back(entry.style);
      PinBorder(entry, axis, result_.modules[module]);
    }
    switch (ReachOf(entry.style.kind)) {
      case Reach::kBorder:
        WEFT_REQUIRE(matches.parameters.empty(), where,
                     ": this style is for modules; the path names a parameter, '",
                     tree_.parameter_path(matches.parameters[0]), "'");
        for (int module : matches.modules) {
          for (int parameter : OwnParameters(module)) Reaches(parameter, entry.style);
        }
        return;
      case Reach::kOwn:
        for (int module : matches.modules) SplitOwn(module, entry.style, axis, where);
        for (int parameter : matches.parameters) {
          WEFT_REQUIRE(SplitDeclared(parameter, entry.style, axis, where), where, ": parameter '",
                       tree_.parameter_path(parameter), "' declares no dim that this style splits");
        }
        return;
      case Reach::kBelow:
        SplitBelow(matches, entry.style, axis, where);
        return;
    }
  }

  // Pins say along one axis where tensors lie at the border; the gradient rule is Redistribute's unless said
  // here.
  static void PinBorder(const PlanEntry& entry, int axis, ResolvedModule& module) {
    const Style& style = entry.style;
    const auto pin_input = [&](const Placement& placement) {
      module.border.input.push_back({axis, style.input.value_or(placement), std::nullopt});
    };
    switch (style.kind) {
      case Style::Kind::kColumnParallel:
        pin_input(Replicate());
        if (style.output) module.border.output.push_back({axis, *style.output, std::nullopt});
        return;
      case Style::Kind::kRowParallel:
      case Style::Kind::kVocabParallel:
        if (style.input) pin_input(*style.input);
        // Every rank needs the whole gradient of the sum that it added a term to.
        module.border.output.push_back({axis, style.output.value_or(Replicate()), Placement(Replicate())});
        return;
      case Style::Kind::kSequenceParallel:
        pin_input(Shard(1));
        break;
      case Style::Kind::kDataParallel:
        pin_input(Shard(0));
        break;
      case Style::Kind::kFullyShard:
        // Inner units receive what the root was given.
        if (module.path.empty() || style.input) pin_input(Shard(0));
        break;
    }
    if (style.output) module.border.output.push_back({axis, *style.output, std::nullopt});
  }

  // A style that splits a module's own parameters does so along the dims that they declare.
  void SplitOwn(int module, const Style& style, int axis, const std::string& where) {
    const std::vector<int> own = OwnParameters(module);
    bool split = own.empty();  // a tied head has none: only its border counts
    for (int parameter : own) split |= SplitDeclared(parameter, style, axis, where);
    WEFT_REQUIRE(split, where, ": module '", tree_.module_path(module),
                 "' declares no dim that this style splits");
  }

  // Returns whether the parameter declares a dim for the style.
  bool SplitDeclared(int parameter, const Style& style, int axis, const std::string& where) {
    Reaches(parameter, style);
    const ParameterSpec& spec = tree_.parameters()[parameter]->spec();
    const int dim = SplitDim(spec.shard_dims, style.kind);
    if (dim < 0) return false;
    const int64_t extent = spec.shape[dim];
    WEFT_REQUIRE(!spec.shard_dims.even_split || extent % mesh_.axis_size(axis) == 0, where, ": axis '",
                 mesh_.axis_name(axis), "' of size ", mesh_.axis_size(axis), " does not divide the ", extent,
                 " heads (dim ", dim, ") of '", tree_.parameter_path(parameter), "'");
    Add(parameter, {.axis = axis, .dim = dim, .columns = ColumnsOf(style)}, where);
    return true;
  }

  void SplitBelow(const ModelTree::Matches& matches, const Style& style, int axis, const std::string& where) {
    const SplitColumns columns = ColumnsOf(style);
    for (const ParameterClaims::Claim& claim : claims_.at(KeyOf(style)).Of(matches)) {
      Reaches(claim.parameter, style);
      if (!AccumulatesUnreduced(style)) accumulates_[claim.parameter] = false;
      const Shape& shape = tree_.parameters()[claim.parameter]->spec().shape;
      const int ndim = shape.ndim();
      if (ndim == 0 || !columns.any()) continue;
      WEFT_REQUIRE(!style.dim || (*style.dim >= -ndim && *style.dim < ndim), where, ": '",
                   tree_.parameter_path(claim.parameter), "' ", shape.ToString(), " has no dim ", *style.dim,
                   "; expected -", ndim, " to ", ndim - 1);
      ParameterSplit split = {.axis = axis, .columns = columns};
      if (style.dim) split.dim = *style.dim < 0 ? *style.dim + ndim : *style.dim;
      Add(claim.parameter, split, where);
      // Of the units of several axes the innermost has it: the one registered last of those around it.
      Unit& unit = units_[claim.parameter];
      if (columns.at_rest && claim.unit >= unit.module) {
        unit = {.module = claim.unit, .reshard = style.reshard, .is_marked = !matches.modules.empty()};
      }
    }
  }

  std::vector<int> OwnParameters(int module) const {
    std::vector<int> own(tree_.modules()[module]->parameters().size());
    std::iota(own.begin(), own.end(), tree_.first_parameter(module));
    return own;
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
      if (is_new || units_[i].is_marked) unit.reshard = units_[i].reshard;
    }
    for (auto& [module, unit] : by_module) result_.units.push_back(std::move(unit));
  }

  struct Unit {
    int module = -1;
    Reshard reshard = Reshard::kAlways;
    bool is_marked = false;  // by an entry for modules
  };

  const DeviceMesh& mesh_;
  const Plan& plan_;
  const ModelTree tree_;
  ResolvedPlan result_;
  std::vector<ModelTree::Matches> matches_;     // of each entry
  std::map<ClaimKey, ParameterClaims> claims_;  // of styles that reach below
  // Of each parameter.
  std::vector<std::vector<ParameterSplit>> splits_;  // in plan order
  std::vector<bool> accumulates_;
  std::vector<Unit> units_;
};

std::string StylesText(const std::vector<Style>& styles) {
  std::vector<std::string> texts;
  for (const Style& style : styles) texts.push_back(style.ToString());
  return texts.empty() ? "-" : absl::StrJoin(texts, " + ");
}

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      absl::StrAppendFormat(&line, "%-*s  ", static_cast<int>(widths[i]), row[i]);
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return text;
}

}  // namespace

std::string ResolvedPlan::ToTable(Module& model, const DeviceMesh& mesh) const {
  std::vector<std::vector<std::string>> rows = {
      {"parameter", "style", "shape", "at rest", "in compute", "gradient", "state", "elements per rank"},
  };
  const std::vector<Parameter*> all = model.AllParameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Shape& shape = all[i]->spec().shape;
    const ParameterLayouts& layouts = parameters[i].layouts;
    rows.push_back({
        parameters[i].path,
        StylesText(parameters[i].styles),
        shape.ToString(),
        layouts.at_rest.ToString(mesh),
        layouts.compute.ToString(mesh),
        layouts.of_gradient().ToString(mesh),
        layouts.of_state().ToString(mesh),
        absl::StrCat(MaxLocalElements(shape, layouts.at_rest, mesh)),
    });
  }
  return FormatTable(rows);
}

ResolvedPlan ResolvePlan(Module& model, const DeviceMesh& mesh, const Plan& plan) {
  return Resolver(model, mesh, plan).Run();
}

}  // namespace weft
