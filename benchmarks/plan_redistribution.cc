// How long planning a redistribution takes, uncached, and how long finding a plan in the cache takes.
//
//   bazel run //benchmarks:plan_redistribution                       a table to read
//   bazel run //benchmarks:plan_redistribution -- --log_format=json  one object per line
//
// Pairs are drawn from all layouts of a 64 MiB tensor over 4-D meshes whose axes cost the same, and over 3-D
// meshes whose axes do not, where the search looks for detours; Partials included. Each is planned three
// times and the shortest counts, so that what else the machine does is not measured.

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/figure.h"
#include "dtensor/context/redistribution_cache.h"
#include "mesh/redistribution/planner.h"
#include "runtime/base/error.h"
#include "runtime/base/flags.h"

ABSL_FLAG(int, pairs, 4000, "pairs of layouts to plan on each mesh");
ABSL_FLAG(std::string, objective, "time", "time or bytes");

namespace weft {
namespace {

constexpr double kMedianTargetUs = 100;
constexpr double kWorstTargetUs = 1000;

FlagsUsage Usage() {
  return {.summary = "Measures the planning of redistributions on 3-D and 4-D meshes.",
          .groups = {{"Measurement", {"pairs", "objective", "log_format"}}},
          .examples = {"plan_redistribution", "plan_redistribution --objective=bytes --log_format=json"}};
}

// A layout with each axis replicated, Partial or on some dim, nested in any order.
Layout DrawLayout(int ndim, int num_axes, std::mt19937_64& random) {
  std::vector<int> order(num_axes);
  for (int axis = 0; axis < num_axes; ++axis) order[axis] = axis;
  std::shuffle(order.begin(), order.end(), random);
  Layout layout(ndim, num_axes);
  for (int axis : order) {
    const int choice = static_cast<int>(random() % (ndim + 2));
    if (choice < ndim) layout = layout.WithShard(axis, choice);
    if (choice == ndim) layout = layout.WithPartial(axis);
  }
  return layout;
}

template <class Body>
double Microseconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

void ReportMicroseconds(const std::string& name, double value, double limit) {
  Report({.name = "plan_redistribution/" + name,
          .value = value,
          .unit = "us",
          .limit = limit,
          .limit_is = "most that it may take",
          .target = 1,
          .less_is_better = true});
}

void MeasureMesh(const CostModel& cost_model, const DeviceMesh& mesh, const std::string& costs,
                 const Shape& shape, PlanObjective objective) {
  std::mt19937_64 random(1);
  std::vector<double> times;
  RedistributionCache cache;
  std::vector<std::pair<Layout, Layout>> pairs;
  for (int i = 0; i < absl::GetFlag(FLAGS_pairs); ++i) {
    const Layout from = DrawLayout(shape.ndim(), mesh.num_axes(), random);
    const Layout to = DrawLayout(shape.ndim(), mesh.num_axes(), random);
    if (from == to) continue;
    double shortest = 1e9;
    for (int run = 0; run < 3; ++run) {
      shortest = std::min(
          shortest, Microseconds([&] {
            PlanRedistribution(from, to, {DType::kF32, shape}, mesh, cost_model, {.objective = objective});
          }));
    }
    times.push_back(shortest);
    if (pairs.size() < 1000) {
      pairs.emplace_back(from, to);
      cache.Insert(from, to, {DType::kF32, shape}, {});
    }
  }
  const double cached = Microseconds([&] {
    for (const auto& [from, to] : pairs) {
      WEFT_CHECK(cache.Find(from, to, {DType::kF32, shape}) != nullptr, "a plan is not in the cache");
    }
  });
  std::sort(times.begin(), times.end());
  const std::string what = absl::StrFormat("(%s)%s/%d_dims", mesh.ToString(), costs, shape.ndim());
  ReportMicroseconds(what + "/median", times[times.size() / 2], kMedianTargetUs);
  ReportMicroseconds(what + "/worst", times.back(), kWorstTargetUs);
  ReportMicroseconds(what + "/cached", cached / static_cast<double>(pairs.size()), 1);
}

int Measure() {
  const std::string objective = absl::GetFlag(FLAGS_objective);
  WEFT_REQUIRE(objective == "time" || objective == "bytes", "--objective=", objective,
               ": expected time or bytes");
  WEFT_REQUIRE(absl::GetFlag(FLAGS_pairs) > 0, "--pairs must be positive");
  const auto measure = [&](const char* text, const Shape& shape, bool unequal) {
    const DeviceMesh mesh = DeviceMesh::Parse(text);
    Machine machine;
    // Across machines, within one, and within one board.
    if (unequal) {
      machine.axes = {{"a", {.alpha = 10e-6, .beta = 5e-10}}, {"c", {.alpha = 2e-6, .beta = 2e-11}}};
    }
    const bool uneven = shape[0] % mesh.num_ranks() != 0;
    MeasureMesh(CostModel(mesh, machine), mesh,
                absl::StrCat(unequal ? " unequal" : "", uneven ? " uneven" : ""), shape,
                objective == "time" ? PlanObjective::kTime : PlanObjective::kBytes);
  };
  for (const char* mesh : {"a=2,b=2,c=2,d=2", "a=4,b=4,c=4,d=4", "a=2,b=3,c=2,d=4", "a=16,b=8,c=4,d=8"}) {
    for (const Shape& shape : {Shape{4096, 4096}, Shape{256, 256, 256}}) {
      measure(mesh, shape, /*unequal=*/false);
    }
  }
  for (const char* mesh : {"a=2,b=2,c=2", "a=2,b=3,c=4", "a=8,b=8,c=8"}) {
    for (const Shape& shape : {Shape{4096, 4096}, Shape{256, 256, 256}, Shape{255, 257, 250}}) {
      measure(mesh, shape, /*unequal=*/true);
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Measure); }
