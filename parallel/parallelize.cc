#include "parallel/parallelize.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "mesh/shard_math.h"
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

// True if the parameter belongs to the module or to one below it.
bool Contains(absl::string_view module_path, absl::string_view parameter_path) {
  return module_path.empty() ||
         (absl::ConsumePrefix(&parameter_path, module_path) && absl::StartsWith(parameter_path, "."));
}

class Resolver {
 public:
  Resolver(Module& model, const DeviceMesh& mesh, const Plan& plan) : mesh_(mesh), plan_(plan) {
    for (Module* module : model.AllModules()) {
      modules_.push_back(module);
      result_.modules.push_back({.path = module->path()});
      for (Parameter* parameter : module->parameters()) {
        const Layout replicated(parameter->spec().shape.ndim(), mesh.num_axes());
        parameters_.push_back(parameter);
        result_.parameters.push_back({parameter->path(), {.at_rest = replicated, .compute = replicated}});
      }
    }
  }

  ResolvedPlan Run() {
    for (const PlanEntry& entry : plan_.entries()) Apply(entry);
    return std::move(result_);
  }

 private:
  void Apply(const PlanEntry& entry) {
    const std::string where = absl::StrCat("plan entry \"", entry.path, "\": ", entry.style.ToString());
    const int axis = mesh_.FindAxis(entry.style.axis);
    WEFT_REQUIRE(axis >= 0, where, ": the mesh (", mesh_.ToString(), ") has no axis '", entry.style.axis,
                 "'");
    bool matched = false;
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (!PathMatches(entry.path, result_.modules[i].path)) continue;
      matched = true;
      result_.modules[i].styles.push_back(entry.style.ToString());
      PinBorder(entry, axis, result_.modules[i]);
      if (IsTensorParallel(entry.style.kind)) SplitOwn(*modules_[i], entry.style.kind, axis, where);
    }
    if (!matched) {
      std::vector<std::string> paths;
      for (const ResolvedModule& module : result_.modules) paths.push_back(module.path);
      ThrowInvalidArgument(where, ": no module matches this path; the nearest is '",
                           NearestName(entry.path, paths), "'");
    }
    if (entry.style.kind == Style::Kind::kFullyShard) SplitUnits(entry, axis, where);
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
  void SplitOwn(const Module& module, Style::Kind kind, int axis, const std::string& where) {
    bool split = module.parameters().empty();  // a tied head has none: only its border counts
    for (Parameter* parameter : module.parameters()) {
      const ShardDims& dims = parameter->spec().shard_dims;
      const int dim = SplitDim(dims, kind);
      if (dim < 0) continue;
      split = true;
      const int64_t extent = parameter->spec().shape[dim];
      WEFT_REQUIRE(!dims.even_split || extent % mesh_.axis_size(axis) == 0, where, ": axis '",
                   mesh_.axis_name(axis), "' of size ", mesh_.axis_size(axis), " does not divide the ",
                   extent, " heads (dim ", dim, ") of '", parameter->path(), "'");
      AddShard(*parameter, axis, dim, /*in_compute=*/true, where);
    }
    WEFT_REQUIRE(split, where, ": module '", module.path(), "' declares no dim that this style splits");
  }

  // The entry's modules are units; each takes what no inner unit of the same axis takes.
  void SplitUnits(const PlanEntry& entry, int axis, const std::string& where) {
    for (Parameter* parameter : parameters_) {
      const std::optional<std::string> unit = InnermostUnit(parameter->path(), entry.style.axis);
      if (!unit || !PathMatches(entry.path, *unit) || parameter->spec().shape.ndim() == 0) continue;
      AddShard(*parameter, axis, /*dim=*/0, /*in_compute=*/false, where);
    }
  }

  // The longest module path that contains the parameter and that some entry marks FullyShard over `axis`.
  std::optional<std::string> InnermostUnit(const std::string& parameter_path, const std::string& axis) const {
    std::optional<std::string> best;
    for (const ResolvedModule& module : result_.modules) {
      if (!Contains(module.path, parameter_path) || (best && module.path.size() <= best->size())) continue;
      const auto marks = [&](const PlanEntry& entry) {
        return entry.style.kind == Style::Kind::kFullyShard && entry.style.axis == axis &&
               PathMatches(entry.path, module.path);
      };
      if (std::any_of(plan_.entries().begin(), plan_.entries().end(), marks)) best = module.path;
    }
    return best;
  }

  void AddShard(const Parameter& parameter, int axis, int dim, bool in_compute, const std::string& where) {
    const auto index = std::find(parameters_.begin(), parameters_.end(), &parameter) - parameters_.begin();
    ParameterLayouts& layouts = result_.parameters[index].layouts;
    WEFT_REQUIRE(!layouts.at_rest.IsShard(axis), where, ": '", parameter.path(),
                 "' is already split over axis '", mesh_.axis_name(axis), "' by another entry (",
                 layouts.at_rest.ToString(mesh_), ")");
    layouts.at_rest = layouts.at_rest.WithShard(axis, dim);
    if (in_compute) layouts.compute = layouts.compute.WithShard(axis, dim);
  }

  const DeviceMesh& mesh_;
  const Plan& plan_;
  std::vector<Module*> modules_;
  std::vector<Parameter*> parameters_;
  ResolvedPlan result_;
};

// The styles that reach a parameter: its module's, then those of enclosing units, from the inside out.
std::string StylesOf(const ResolvedPlan& plan, absl::string_view parameter_path) {
  std::vector<std::string> styles;
  for (auto module = plan.modules.rbegin(); module != plan.modules.rend(); ++module) {
    if (!Contains(module->path, parameter_path)) continue;
    const size_t begin = module->path.empty() ? 0 : module->path.size() + 1;
    const bool own = !absl::StrContains(parameter_path.substr(begin), '.');
    for (const std::string& style : module->styles) {
      const bool is_unit = absl::StartsWith(style, "FullyShard") || absl::StartsWith(style, "DataParallel");
      if (!own && !is_unit) continue;
      if (std::find(styles.begin(), styles.end(), style) == styles.end()) styles.push_back(style);
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
  const std::vector<Parameter*> all = model.AllParameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Shape& shape = all[i]->spec().shape;
    const ParameterLayouts& layouts = parameters[i].layouts;
    rows.push_back({parameters[i].path, StylesOf(*this, parameters[i].path), shape.ToString(),
                    layouts.at_rest.ToString(mesh), layouts.compute.ToString(mesh),
                    absl::StrCat(MaxLocalElements(shape, layouts.at_rest, mesh))});
  }
  return FormatTable(rows);
}

ResolvedPlan ResolvePlan(Module& model, const DeviceMesh& mesh, const Plan& plan) {
  return Resolver(model, mesh, plan).Run();
}

void Parallelize(Module& model, const IntrusivePtr<MeshContext>& context, const Plan& plan,
                 const MaterializeOptions& options) {
  const std::vector<Parameter*> parameters = model.AllParameters();
  for (const Parameter* parameter : parameters) {
    if (!parameter->materialized()) continue;
    Throw(absl::StatusCode::kFailedPrecondition, "Parallelize: parameter '", parameter->path(),
          "' already has a value; a model is materialized once");
  }
  ResolvedPlan resolved = ResolvePlan(model, context->mesh(), plan);
  const std::vector<Module*> modules = model.AllModules();
  for (size_t i = 0; i < modules.size(); ++i) {
    modules[i]->Bind(context);
    modules[i]->set_border(std::move(resolved.modules[i].border));
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->Materialize(context, options.dtype, options.compute_dtype.value_or(options.dtype),
                               resolved.parameters[i].layouts);
  }
}

IntrusivePtr<MeshContext> Parallelize(Module& model, World& world, const DeviceMesh& mesh, const Plan& plan,
                                      const MaterializeOptions& options) {
  IntrusivePtr<MeshContext> context = Bind(world, mesh);
  Parallelize(model, context, plan, options);
  return context;
}

}  // namespace weft
