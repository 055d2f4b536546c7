// How a resolved plan prints.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "mesh/shard_math.h"
#include "parallel/resolved_plan.h"

namespace weft {
namespace {

std::string StylesText(const std::vector<Style>& styles) {
  std::vector<std::string> texts;
  for (const Style& style : styles) texts.push_back(style.ToString());
  return texts.empty() ? "-" : absl::StrJoin(texts, " + ");
}

// "[-, -]", or "bf16 [-, -]" of what has a dtype of its own.
std::string WithDType(const std::string& layout, const std::optional<DType>& dtype) {
  return dtype ? absl::StrCat(DTypeName(*dtype), " ", layout) : layout;
}

// "host [-, -]" of what lies in the second memory.
std::string InMemory(const std::string& layout, bool on_host) {
  return on_host ? absl::StrCat("host ", layout) : layout;
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
  if (pipeline) rows[0].push_back("stages");
  if (parts) rows[0].push_back("part");
  const auto mesh_of = [&](int part) { return part < 0 ? mesh : parts->parts[part].mesh; };
  const std::vector<Parameter*> all = model.RegisteredParameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Shape& shape = all[i]->spec().shape;
    const ParameterLayouts& layouts = parameters[i].layouts;
    const DeviceMesh own_mesh = mesh_of(parameters[i].part);
    rows.push_back({
        parameters[i].path,
        StylesText(parameters[i].styles),
        shape.ToString(),
        InMemory(layouts.at_rest.ToString(own_mesh), parameters[i].memory.value_on_host),
        WithDType(layouts.compute.ToString(own_mesh), parameters[i].compute_dtype),
        InMemory(WithDType(layouts.of_gradient().ToString(own_mesh), parameters[i].reduce_dtype),
                 parameters[i].memory.state_on_host),
        InMemory(layouts.of_state().ToString(own_mesh), parameters[i].memory.state_on_host),
        absl::StrCat(MaxLocalElements(shape, layouts.at_rest, own_mesh)),
    });
    if (pipeline) rows.back().push_back(absl::StrJoin(parameters[i].stages, ", "));
    if (parts) rows.back().push_back(parts->NameOf(parameters[i].part, mesh));
  }
  for (const ResolvedBuffer& buffer : buffers) {
    const int part = modules[buffer.module].part;
    const DeviceMesh own_mesh = mesh_of(part);
    const std::string elements = absl::StrCat(MaxLocalElements(buffer.shape, buffer.layout, own_mesh));
    rows.push_back({buffer.path, StylesText(buffer.styles), buffer.shape.ToString(),
                    buffer.layout.ToString(own_mesh), "-", "-", "-", elements});
    if (pipeline) rows.back().push_back(absl::StrJoin(modules[buffer.module].stages, ", "));
    if (parts) rows.back().push_back(parts->NameOf(part, mesh));
  }
  return FormatTable(rows);
}

}  // namespace weft
