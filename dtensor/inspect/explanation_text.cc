// How an Explanation prints: a table to read, and JSON.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/inspect/explain.h"
#include "ops/sharding/propagation_trace.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

// Columns as wide as their widest cell, two blanks apart; no blanks at the ends of lines.
std::string Table(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(widths[i] - row[i].size() + 2, ' '));
    }
    absl::StrAppend(&text, line.substr(0, line.find_last_not_of(' ') + 1), "\n");
  }
  return text;
}

std::string Microseconds(double us) { return absl::StrFormat("%.1f", us); }

std::string LayoutsText(absl::Span<const Layout> layouts, const DeviceMesh& mesh) {
  return absl::StrJoin(layouts, ", ",
                       [&](std::string* out, const Layout& layout) { out->append(layout.ToString(mesh)); });
}

Row HeaderOf(const Explanation& explanation) {
  Row header = {" "};
  for (const MeshAxis& axis : explanation.mesh.axes()) header.push_back(axis.name);
  for (const std::string& name : explanation.operand_names) header.push_back(name);
  for (const char* title : {"-> outputs", "moved B", "move us", "compute us", "output us", "total us", ""}) {
    header.push_back(title);
  }
  return header;
}

Row RowOf(const Explanation& explanation, const Explanation::Candidate& candidate) {
  const DeviceMesh& mesh = explanation.mesh;
  const bool dropped = candidate.outputs.empty();
  Row row = {candidate.chosen ? "*" : " "};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const size_t i = static_cast<size_t>(axis);
    row.push_back(i < candidate.choices.size() ? candidate.choices[i] : "?");
  }
  for (size_t i = 0; i < explanation.layouts.size(); ++i) {
    row.push_back(dropped ? "?" : candidate.moves[i].to.ToString(mesh));
  }
  row.push_back(dropped ? "?" : LayoutsText(candidate.outputs, mesh));
  row.push_back(dropped ? "?" : absl::StrCat(candidate.num_bytes()));
  // Estimates, made axis by axis, are marked.
  row.push_back(absl::StrCat(dropped ? "~" : "", Microseconds(candidate.transfer_us)));
  row.push_back(Microseconds(candidate.compute_us));
  row.push_back(Microseconds(candidate.output_us));
  row.push_back(absl::StrCat(dropped ? "~" : "", Microseconds(candidate.total_us())));
  std::vector<std::string> remarks;
  if (candidate.chosen) remarks.push_back("chosen");
  if (!candidate.why.empty()) remarks.push_back(candidate.why);
  for (size_t i = 0; i < candidate.moves.size(); ++i) {
    if (candidate.moves[i].steps.empty()) continue;
    remarks.push_back(absl::StrCat(explanation.operand_names[i], " by ", candidate.moves[i].steps));
  }
  row.push_back(absl::StrJoin(remarks, "; "));
  return row;
}

Json ToValue(const Explanation::Candidate& candidate, const DeviceMesh& mesh) {
  Json moves = Json::array();
  for (const Explanation::Move& move : candidate.moves) {
    moves.push_back(
        {{"to", move.to.ToString(mesh)}, {"us", move.us}, {"bytes", move.num_bytes}, {"steps", move.steps}});
  }
  Json outputs = Json::array();
  for (const Layout& layout : candidate.outputs) outputs.push_back(layout.ToString(mesh));
  return {{"choices", candidate.choices},
          {"moves", std::move(moves)},
          {"outputs", std::move(outputs)},
          {"move_us", candidate.transfer_us},
          {"compute_us", candidate.compute_us},
          {"output_us", candidate.output_us},
          {"total_us", candidate.total_us()},
          {"chosen", candidate.chosen},
          {"why", candidate.why}};
}

Json ToValue(const Explanation& explanation) {
  const DeviceMesh& mesh = explanation.mesh;
  Json operands = Json::array();
  for (size_t i = 0; i < explanation.types.size(); ++i) {
    operands.push_back({{"name", explanation.operand_names[i]},
                        {"type", explanation.types[i].ToString()},
                        {"layout", explanation.layouts[i].ToString(mesh)}});
  }
  Json candidates = Json::array();
  for (const Explanation::Candidate& candidate : explanation.candidates) {
    candidates.push_back(ToValue(candidate, mesh));
  }
  Json parts = Json::array();
  for (const Explanation& part : explanation.parts) parts.push_back(ToValue(part));
  return {{"op", explanation.op},
          {"path", explanation.path},
          {"mesh", mesh.ToString()},
          {"rule", explanation.rule},
          {"operands", std::move(operands)},
          {"candidates", std::move(candidates)},
          {"refused", explanation.refused},
          {"decomposed_because", explanation.decomposed_because},
          {"parts", std::move(parts)},
          {"total_us", explanation.total_us()},
          {"bytes", explanation.num_bytes()}};
}

}  // namespace

std::string Explanation::ToString() const {
  std::string text =
      absl::StrCat(CallText(op, types, layouts, mesh), path.empty() ? "" : " in module ", path, "\nmesh ",
                   mesh.num_axes() == 0 ? "of no axes" : mesh.ToString(), ", rule ", rule, "\n");
  if (!decomposed_because.empty()) {
    absl::StrAppend(&text, "runs as its decomposition, since ", decomposed_because,
                    absl::StrFormat("; %.1f us in all\n", total_us()));
    for (const Explanation& part : parts) {
      for (absl::string_view line : absl::StrSplit(part.ToString(), '\n', absl::SkipEmpty())) {
        absl::StrAppend(&text, "  ", line, "\n");
      }
    }
    return text;
  }
  std::vector<Row> rows = {HeaderOf(*this)};
  for (const Candidate& candidate : candidates) rows.push_back(RowOf(*this, candidate));
  absl::StrAppend(&text, Table(rows));
  for (const std::string& line : refused) absl::StrAppend(&text, "no candidate: ", line, "\n");
  return text;
}

std::string Explanation::ToJson() const { return ToValue(*this).dump(); }

}  // namespace weft
