#include "parallel/resolved_plan.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "mesh/shard_math.h"
#include "parallel/path_tree.h"
#include "runtime/base/nearest.h"

namespace weft {
namespace {

// The dim of a parameter that a tensor-parallel style splits, or -1.
int SplitDim(const ShardDims& dims, Style::Kind kind) {
  switch (kind) {
    case Style::Kind::kColumnParallel:
      return dims.column;
    case Style::Kind::kRowParallel:
      return dims.row;
    case Style::Kind::kVocabParallel:
      return dims.vocabulary;
    default:
      return -1;
  }
}

bool IsTensorParallel(Style::Kind kind) {
  return kind == Style::Kind::kColumnParallel || kind == Style::Kind::kRowParallel ||
         kind == Style::Kind::kVocabParallel;
}

// What a path lies in, one step out: "blocks.0" of "blocks.0.attn", "" of "wpe".
absl::string_view Enclosing(absl::string_view path) {
  const size_t dot = path.rfind('.');
  return path.substr(0, dot == absl::string_view::npos ? 0 : dot);
}

// One entry's split of a parameter.
struct Split {
  int axis = 0;
  std::optional<int> dim = std::nullopt;  // not given: chosen when all of the parameter's splits are known
  bool in_compute = false;
};

// The dim over which `split`, one of `splits`, cuts a parameter of this shape: as it says, otherwise as
// FullyShard does. Counts chunks, so that no order of nesting matters.
int ChosenDim(const Shape& shape, absl::Span<const Split> splits, const Split& split,
              const DeviceMesh& mesh) {
  if (split.dim) return *split.dim;
  std::vector<int64_t> chunks(shape.ndim(), 1);  // that the others cut each dim into
  for (const Split& other : splits) {
    if (other.dim) chunks[*other.dim] *= mesh.axis_size(other.axis);
  }
  int largest = 0;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (shape[dim] % (chunks[dim] * mesh.axis_size(split.axis)) == 0) return dim;
    if (shape[dim] * chunks[largest] > shape[largest] * chunks[dim]) largest = dim;  // of what is left
  }
  return largest;
}

// The layouts that splits make, in their order, the first outermost.
ParameterLayouts LayoutsOf(const Shape& shape, std::vector<Split> splits, const DeviceMesh& mesh) {
  const Layout replicated(shape.ndim(), mesh.num_axes());
  ParameterLayouts layouts = {.at_rest = replicated, .compute = replicated};
  for (Split& split : splits) split.dim = ChosenDim(shape, splits, split, mesh);
  for (const Split& split : splits) {
    layouts.at_rest = layouts.at_rest.WithShard(split.axis, *split.dim);
    if (split.in_compute) layouts.compute = layouts.compute.WithShard(split.axis, *split.dim);
  }
  return layouts;
}

std::vector<std::string> PathsOf(const std::vector<ResolvedModule>& modules) {
  std::vector<std::string> paths;
  paths.reserve(modules.size());
  for (const ResolvedModule& module : modules) paths.push_back(module.path);
  return paths;
}

// Takes time in proportion to the model, the plan, and what the plan's entries match, together: never to
// modules times parameters, nor to modules times entries.
class Resolver {
 public:
  Resolver(Module& model, const DeviceMesh& mesh, const Plan& plan)
      : mesh_(mesh), plan_(plan), result_(Unresolved(model)), tree_(PathsOf(result_.modules)) {
    for (Module* module : model.AllModules()) {
      modules_.push_back(module);
      first_parameter_.push_back(parameters_.size());
      parameters_.insert(parameters_.end(), module->parameters().begin(), module->parameters().end());
    }
    splits_.resize(parameters_.size());
  }

  ResolvedPlan Run() {
    for (const PlanEntry& entry : plan_.entries()) Apply(entry);
    for (size_t i = 0; i < parameters_.size(); ++i) result_.parameters[i].layouts = CurrentLayouts(i);
    return std::move(result_);
  }

 private:
  void Apply(const PlanEntry& entry) {
    const std::string where = absl::StrCat("plan entry \"", entry.path, "\": ", entry.style.ToString());
    const int axis = mesh_.FindAxis(entry.style.axis);
    WEFT_REQUIRE(axis >= 0, where, ": the mesh (", mesh_.ToString(), ") has no axis '", entry.style.axis,
                 "'");
    const bool is_unit = entry.style.kind == Style::Kind::kFullyShard;
    WEFT_REQUIRE(is_unit || !entry.style.dim, where, ": only FullyShard takes a dim");
    const std::vector<int> matches = tree_.Match(entry.path);
    if (matches.empty()) {
      ThrowInvalidArgument(where, ": no module matches this path; the nearest is '",
                           NearestName(entry.path, PathsOf(result_.modules)), "'");
    }
    for (int i : matches) {
      result_.modules[i].styles.push_back(entry.style);
      PinBorder(entry, axis, result_.modules[i]);
      if (IsTensorParallel(entry.style.kind)) SplitOwn(i, entry.style.kind, axis, where);
    }
    if (is_unit) SplitUnits(matches, axis, entry.style.dim, where);
  }

  // Nothing pinned, nothing laid.
  static ResolvedPlan Unresolved(Module& model) {
    ResolvedPlan plan;
    for (Module* module : model.AllModules()) {
      plan.modules.push_back({.path = module->path()});
      for (const Parameter* parameter : module->parameters()) {
        plan.parameters.push_back({parameter->path(), {}});
      }
    }
    return plan;
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

  // Tensor-parallel styles split the module's own parameters, along the dims that it declares.
  void SplitOwn(int module, Style::Kind kind, int axis, const std::string& where) {
    const std::vector<Parameter*>& own = modules_[module]->parameters();
    bool split = own.empty();  // a tied head has none: only its border counts
    for (size_t i = 0; i < own.size(); ++i) {
      const ShardDims& dims = own[i]->spec().shard_dims;
      const int dim = SplitDim(dims, kind);
      if (dim < 0) continue;
      split = true;
      const int64_t extent = own[i]->spec().shape[dim];
      WEFT_REQUIRE(!dims.even_split || extent % mesh_.axis_size(axis) == 0, where, ": axis '",
                   mesh_.axis_name(axis), "' of size ", mesh_.axis_size(axis), " does not divide the ",
                   extent, " heads (dim ", dim, ") of '", own[i]->path(), "'");
      Add(first_parameter_[module] + i, {.axis = axis, .dim = dim, .in_compute = true}, where);
    }
    WEFT_REQUIRE(split, where, ": module '", modules_[module]->path(),
                 "' declares no dim that this style splits");
  }

  // The modules of `matches` are units; each takes what no inner unit of the same axis takes.
  void SplitUnits(const std::vector<int>& matches, int axis, std::optional<int> dim,
                  const std::string& where) {
    const auto [units, is_new] = units_.try_emplace(axis);
    if (is_new) units->second = UnitsAlong(axis);
    std::vector<size_t> taken;
    for (int module : matches) {
      const auto unit = units->second.find(result_.modules[module].path);
      if (unit == units->second.end()) continue;
      taken.insert(taken.end(), unit->second.begin(), unit->second.end());
    }
    std::sort(taken.begin(), taken.end());
    taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
    for (size_t parameter : taken) {
      const Shape& shape = parameters_[parameter]->spec().shape;
      const int ndim = shape.ndim();
      if (ndim == 0) continue;
      WEFT_REQUIRE(!dim || (*dim >= -ndim && *dim < ndim), where, ": '", result_.parameters[parameter].path,
                   "' ", shape.ToString(), " has no dim ", *dim, "; expected -", ndim, " to ", ndim - 1);
      Split split = {.axis = axis};
      if (dim) split.dim = *dim < 0 ? *dim + ndim : *dim;
      Add(parameter, split, where);
    }
  }

  // Parameters by unit: those of which no longer module path contains them, of the paths that some entry
  // marks FullyShard over `axis`.
  using Units = absl::flat_hash_map<std::string, std::vector<size_t>>;
  Units UnitsAlong(int axis) const {
    Units units;
    for (const PlanEntry& entry : plan_.entries()) {
      if (entry.style.kind != Style::Kind::kFullyShard || entry.style.axis != mesh_.axis_name(axis)) continue;
      for (int module : tree_.Match(entry.path)) units.try_emplace(result_.modules[module].path);
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      absl::string_view path = result_.parameters[i].path;
      auto unit = units.end();
      while (unit == units.end() && !path.empty()) {
        path = Enclosing(path);
        unit = units.find(path);
      }
      if (unit != units.end()) unit->second.push_back(i);
    }
    return units;
  }

  void Add(size_t parameter, const Split& split, const std::string& where) {
    for (const Split& other : splits_[parameter]) {
      WEFT_REQUIRE(other.axis != split.axis, where, ": '", result_.parameters[parameter].path,
                   "' is already split over axis '", mesh_.axis_name(split.axis), "' by another entry (",
                   CurrentLayouts(parameter).at_rest.ToString(mesh_), ")");
    }
    splits_[parameter].push_back(split);
  }

  ParameterLayouts CurrentLayouts(size_t parameter) const {
    return LayoutsOf(parameters_[parameter]->spec().shape, splits_[parameter], mesh_);
  }

  const DeviceMesh& mesh_;
  const Plan& plan_;
  ResolvedPlan result_;
  const PathTree tree_;  // of the modules' paths
  std::vector<Module*> modules_;
  std::vector<size_t> first_parameter_;  // of each module, in parameters_
  std::vector<Parameter*> parameters_;
  std::vector<std::vector<Split>> splits_;  // of each parameter, in plan order
  absl::flat_hash_map<int, Units> units_;   // by axis
};

using StylesByPath = absl::flat_hash_map<absl::string_view, const std::vector<Style>*>;

// The styles that reach a parameter: its module's, then those of enclosing units, from the inside out.
std::string StylesOf(const StylesByPath& styles_of, absl::string_view parameter_path) {
  std::vector<std::string> styles;
  const absl::string_view own = Enclosing(parameter_path);
  for (absl::string_view path = parameter_path; !path.empty();) {
    path = Enclosing(path);
    const auto module = styles_of.find(path);
    if (module == styles_of.end()) continue;
    for (const Style& style : *module->second) {
      const bool reaches_in =
          style.kind == Style::Kind::kFullyShard || style.kind == Style::Kind::kDataParallel;
      if (path != own && !reaches_in) continue;
      const std::string text = style.ToString();
      if (std::find(styles.begin(), styles.end(), text) == styles.end()) styles.push_back(text);
    }
  }
  return styles.empty() ? "-" : absl::StrJoin(styles, " + ");
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
      {"parameter", "style", "shape", "at rest", "in compute", "elements per rank"}};
  StylesByPath styles_of;
  for (const ResolvedModule& module : modules) styles_of.try_emplace(module.path, &module.styles);
  const std::vector<Parameter*> all = model.AllParameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Shape& shape = all[i]->spec().shape;
    const ParameterLayouts& layouts = parameters[i].layouts;
    rows.push_back({parameters[i].path, StylesOf(styles_of, parameters[i].path), shape.ToString(),
                    layouts.at_rest.ToString(mesh), layouts.compute.ToString(mesh),
                    absl::StrCat(MaxLocalElements(shape, layouts.at_rest, mesh))});
  }
  return FormatTable(rows);
}

ResolvedPlan ResolvePlan(Module& model, const DeviceMesh& mesh, const Plan& plan) {
  return Resolver(model, mesh, plan).Run();
}

}  // namespace weft
