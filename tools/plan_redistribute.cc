// Prints how a tensor goes from one layout to another, and what that costs.
//
//   bazel run //tools:plan_redistribute -- --mesh=a=4,b=4 --shape=4096,4096 --from="[a,b]" --to="[b,a]"
//   bazel run //tools:plan_redistribute -- --mesh=dp=8,tp=4 --from="[-, tp] P{dp}" --to="[dp, tp]"
//   --log_format=json

#include <optional>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_format.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"
#include "tools/redistribution_report.h"

ABSL_FLAG(std::string, mesh, "a=4,b=4", "axes and their sizes");
ABSL_FLAG(std::string, shape, "4096,4096", "extents of the global tensor; empty: a scalar");
ABSL_FLAG(std::string, dtype, "f32", "of its elements");
ABSL_FLAG(std::string, from, "", "layout before: \"[a.b, -]\", \"[-, -] P{a,b}\", \"P{a:max}\"");
ABSL_FLAG(std::string, to, "", "layout after");
ABSL_FLAG(std::string, objective, "time",
          "time: least predicted time of no more bytes than the greedy plan; bytes: fewest bytes of the "
          "worst rank");
ABSL_FLAG(int64_t, memory_cap, 0, "bytes that a rank may hold meanwhile; 0: any");
ABSL_FLAG(double, alpha_us, 5, "microseconds of a message, along every axis");
ABSL_FLAG(double, us_per_byte, 1e-4, "microseconds of a byte, along every axis");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {
      .summary =
          "Plans a redistribution: its steps, bytes, memory and predicted time, beside the greedy\n"
          "per-axis plan and the bytes that the worst rank lacks.",
      .groups = {{"What", {"mesh", "shape", "dtype", "from", "to"}},
                 {"How", {"objective", "memory_cap", "alpha_us", "us_per_byte"}},
                 {"Output", {"log_format"}}},
      .examples = {"plan_redistribute --mesh=a=4,b=4 --from=\"[a,b]\" --to=\"[b,a]\"",
                   "plan_redistribute --mesh=a=2,b=8 --from=\"[a.b, -]\" --to=\"[b, -]\" --objective=bytes "
                   "--log_format=json"}};
}

PlanObjective ParseObjective(const std::string& text) {
  WEFT_REQUIRE(text == "time" || text == "bytes", "--objective=", text, ": expected time or bytes");
  return text == "time" ? PlanObjective::kTime : PlanObjective::kBytes;
}

int Run(const ParsedFlags& flags) {
  for (const char* flag : {"from", "to"}) {
    WEFT_REQUIRE(flags.Given(flag), "--", flag, ": expected a layout, such as [a, b], got none");
  }
  const std::string format = absl::GetFlag(FLAGS_log_format);
  WEFT_REQUIRE(format == "text" || format == "json", "--log_format=", format, ": expected text or json");
  const int64_t cap = absl::GetFlag(FLAGS_memory_cap);
  WEFT_REQUIRE(cap >= 0, "--memory_cap=", cap, ": expected a number of bytes");
  const RedistributionQuery query = ParseRedistributionQuery(
      absl::GetFlag(FLAGS_mesh), absl::GetFlag(FLAGS_shape), absl::GetFlag(FLAGS_dtype),
      absl::GetFlag(FLAGS_from), absl::GetFlag(FLAGS_to));
  const AxisCost cost = {.alpha = absl::GetFlag(FLAGS_alpha_us) * 1e-6,
                         .beta = absl::GetFlag(FLAGS_us_per_byte) * 1e-6};
  const CostModel cost_model(query.mesh, {.other_axes = cost});
  const RedistributionReport report =
      ReportRedistribution(query, cost_model,
                           {.objective = ParseObjective(absl::GetFlag(FLAGS_objective)),
                            .memory_cap = cap > 0 ? std::optional<int64_t>(cap) : std::nullopt});
  if (format == "json") {
    absl::PrintF("%s\n", report.ToJson());
  } else {
    absl::PrintF("%s %s to %s on mesh %s\n\n%s", query.type.ToString(), query.from.ToString(query.mesh),
                 query.to.ToString(query.mesh), query.mesh.ToString(), report.ToText());
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
