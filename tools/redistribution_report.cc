#include "tools/redistribution_report.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "mesh/redistribution/bound.h"
#include "mesh/redistribution/bytes.h"
#include "mesh/redistribution/greedy.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"

namespace weft {
namespace {

Shape ParseShape(absl::string_view text) {
  Shape shape;
  if (absl::StripAsciiWhitespace(text).empty()) return shape;
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    int64_t extent = -1;
    WEFT_REQUIRE(absl::SimpleAtoi(entry, &extent) && extent >= 0, "cannot read shape \"", text,
                 "\": expected extents separated by commas, got '", absl::StripAsciiWhitespace(entry), "'");
    WEFT_REQUIRE(shape.ndim() < Shape::kMaxDims, "cannot read shape \"", text, "\": more than ",
                 Shape::kMaxDims, " dims");
    shape.push_back(extent);
  }
  return shape;
}

// A step moves at most twice these bytes, and a plan has few steps: what is added up stays within 64 bits. An extent of 0 makes
// no other one small: pieces are cut of each.
// Errors: InvalidArgument if `type`, whole on every rank, has too many.
void RequireCountable(const TensorType& type, const DeviceMesh& mesh) {
  constexpr int64_t kMostBytes = int64_t{1} << 58;
  int64_t num_bytes = 0;
  bool fits = !__builtin_mul_overflow(ItemSize(type.dtype), mesh.num_ranks(), &num_bytes);
  for (int64_t extent : type.shape) {
    fits = fits && !__builtin_mul_overflow(num_bytes, std::max<int64_t>(1, extent), &num_bytes);
  }
  WEFT_REQUIRE(fits && num_bytes <= kMostBytes, "shape ", type.ToString(), " on mesh ", mesh.ToString(),
               ": expected at most 2^58 bytes, if each rank had the whole");
}

Layout ParseLayout(absl::string_view text, const Shape& shape, const DeviceMesh& mesh) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(text);
  const bool is_bare = absl::StartsWith(stripped, "P");
  const std::string whole =
      absl::StrCat("[", absl::StrJoin(std::vector<std::string>(shape.ndim(), "-"), ", "), "] ", stripped);
  const Layout layout = Layout::Parse(is_bare ? absl::string_view(whole) : text, mesh);
  WEFT_REQUIRE(layout.ndim() == shape.ndim(), "layout ", layout.ToString(mesh), " has ", layout.ndim(),
               " dims, but the shape is ", shape.ToString());
  return layout;
}

}  // namespace

RedistributionQuery ParseRedistributionQuery(absl::string_view mesh, absl::string_view shape,
                                             absl::string_view dtype, absl::string_view from,
                                             absl::string_view to) {
  RedistributionQuery query;
  query.mesh = DeviceMesh::Parse(mesh);
  query.type.shape = ParseShape(shape);
  query.type.dtype = ParseDType(dtype);
  RequireCountable(query.type, query.mesh);
  query.from = ParseLayout(from, query.type.shape, query.mesh);
  query.to = ParseLayout(to, query.type.shape, query.mesh);
  return query;
}

RedistributionReport ReportRedistribution(const RedistributionQuery& query, const CostModel& cost_model,
                                          const PlanOptions& options) {
  const auto& [mesh, from, to, type] = query;
  const Redistribution plan = PlanRedistribution(from, to, type, mesh, cost_model, options);
  RedistributionReport report;
  Layout before = from;
  for (const RedistributionStep& step : plan.steps) {
    StepReport row;
    row.kind = std::string(StepKindName(step.kind));
    for (int axis : step.axes) row.axes.push_back(mesh.axis_name(axis));
    row.result = step.result.ToString(mesh);
    row.worst_rank_bytes = WorstRankTraffic(step, before, type, mesh).bytes;
    row.total_bytes = StepBytes(step, before, type, mesh);
    row.predicted_us = cost_model.StepMicroseconds(step, before, type);
    report.worst_rank_bytes += row.worst_rank_bytes;
    report.total_bytes += row.total_bytes;
    report.predicted_us += row.predicted_us;
    report.steps.push_back(std::move(row));
    before = step.result;
  }
  const int64_t global_bytes = type.shape.num_elements() * ItemSize(type.dtype);
  if (global_bytes > 0) {
    report.fraction = static_cast<double>(report.worst_rank_bytes) / static_cast<double>(global_bytes);
  }
  report.peak_bytes = PeakBytes(plan, type, mesh);
  report.greedy_bytes = WorstRankBytes(PlanGreedy(from, to, mesh), type, mesh);
  report.bound_bytes = RedistributionBound(from, to, type, mesh);
  return report;
}

std::string RedistributionReport::ToJson() const {
  nlohmann::ordered_json json;
  json["steps"] = nlohmann::ordered_json::array();
  for (const StepReport& step : steps) {
    json["steps"].push_back({{"kind", step.kind},
                             {"axes", step.axes},
                             {"result", step.result},
                             {"worst_rank_bytes", step.worst_rank_bytes},
                             {"total_bytes", step.total_bytes},
                             {"predicted_us", step.predicted_us}});
  }
  json["worst_rank_bytes"] = worst_rank_bytes;
  json["total_bytes"] = total_bytes;
  json["fraction"] = fraction;
  json["peak_bytes"] = peak_bytes;
  json["predicted_us"] = predicted_us;
  json["greedy_bytes"] = greedy_bytes;
  json["bound_bytes"] = bound_bytes;
  return json.dump();
}

std::string RedistributionReport::ToText() const {
  size_t width = 6;
  for (const StepReport& step : steps) width = std::max(width, step.result.size());
  std::string text = absl::StrFormat("%-15s %-10s %-*s %16s %16s %12s\n", "step", "axes", width, "result",
                                     "worst rank bytes", "total bytes", "predicted us");
  for (const StepReport& step : steps) {
    absl::StrAppendFormat(&text, "%-15s %-10s %-*s %16d %16d %12.1f\n", step.kind,
                          absl::StrJoin(step.axes, ","), width, step.result, step.worst_rank_bytes,
                          step.total_bytes, step.predicted_us);
  }
  if (steps.empty()) absl::StrAppend(&text, "(nothing moves)\n");
  absl::StrAppendFormat(&text,
                        "\nworst rank  %d bytes, %.4f of the tensor (greedy %d, bound %d)\n"
                        "all ranks   %d bytes\n"
                        "peak        %d bytes a rank\n"
                        "predicted   %.1f us\n",
                        worst_rank_bytes, fraction, greedy_bytes, bound_bytes, total_bytes, peak_bytes,
                        predicted_us);
  return text;
}

}  // namespace weft
