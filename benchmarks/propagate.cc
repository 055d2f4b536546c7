// How long the choice of a sharding takes: matmuls on 1-D, 2-D and 3-D meshes, every pair of operand layouts
// over Replicate, Shard(0), Shard(1) and Partial along each axis.
//
//   bazel run //benchmarks:propagate                       a line per mesh to read
//   bazel run //benchmarks:propagate -- --log_format=json  one object per line
//
// Each pair is searched several times and the least time counts: what another program takes of the machine is
// not the search's. Value is the median over the pairs, and another the worst pair. Nothing here is cached by
// the propagation cache: this is what a miss costs.

#include "ops/sharding/propagate.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "ops/product/contract.h"
#include "runtime/base/flags.h"

ABSL_FLAG(int, repeats, 5, "searches of each pair of layouts; the fastest counts");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Measures the search for the sharding of a matmul.",
          .groups = {{"Measurement", {"repeats", "log_format"}}},
          .examples = {"propagate", "propagate --log_format=json"}};
}

std::vector<Layout> LayoutsOver(const DeviceMesh& mesh) {
  std::vector<Layout> layouts = {Layout(2, mesh.num_axes())};
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    std::vector<Layout> longer;
    for (const Layout& layout : layouts) {
      longer.push_back(layout);
      longer.push_back(layout.WithShard(axis, 0));
      longer.push_back(layout.WithShard(axis, 1));
      longer.push_back(layout.WithPartial(axis));
    }
    layouts = std::move(longer);
  }
  return layouts;
}

// Microseconds of each pair's search, ascending.
std::vector<double> SearchTimes(const DeviceMesh& mesh) {
  const CostModel cost_model(mesh);
  const TensorTypes types = {{DType::kF32, {512, 1024}}, {DType::kF32, {1024, 2048}}};
  const ContractAttributes attributes = {"mk", "kn", "mn"};
  const TensorTypes outputs = kContract.Infer(types, &attributes);
  const std::vector<Layout> layouts = LayoutsOver(mesh);
  std::vector<double> times;
  for (const Layout& x : layouts) {
    for (const Layout& w : layouts) {
      const Layout operands[] = {x, w};
      double least = 1e30;
      for (int i = 0; i < absl::GetFlag(FLAGS_repeats); ++i) {
        const auto begin = std::chrono::steady_clock::now();
        Propagate({.op = &kContract,
                   .attributes = &attributes,
                   .operand_types = types,
                   .operand_layouts = operands,
                   .output_types = outputs},
                  mesh, cost_model);
        const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
        least = std::min(least, time.count());
      }
      times.push_back(least);
    }
  }
  std::sort(times.begin(), times.end());
  return times;
}

int Measure() {
  struct Case {
    const char* mesh;
    const char* name;
    double limit_us;
  };
  for (const Case& c : {Case{"a=2", "matmul_1d", 20}, Case{"a=2,b=2", "matmul_2d", 20},
                        Case{"a=2,b=2,c=2", "matmul_3d", 200}}) {
    const std::vector<double> times = SearchTimes(DeviceMesh::Parse(c.mesh));
    const auto report = [&](const char* which, double us) {
      Report({.name = absl::StrCat("propagate/", c.name, "/", which),
              .value = us,
              .unit = "us",
              .limit = c.limit_us,
              .limit_is = "most that a miss may take",
              .target = 1,
              .less_is_better = true});
    };
    report("median", times[times.size() / 2]);
    report("worst", times.back());
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Measure); }
