// How cost grows: with layers, parameters, mesh axes, ranks in a process, and ranks of a mesh.
//
//   bazel run //benchmarks:scale                                      all series, under a minute
//   bazel run //benchmarks:scale -- --only=mesh/                      those with this in their name
//   bazel run //benchmarks:scale -- --log_format=json | benchmarks/plot_scale.py > docs/scaling.svg
//
// Every series is a line a point and a line with the fitted exponent e of cost = c * size^e, held against
// what the series should do:
//
//   flat     e <= 0.1: the cost may depend on the logarithm of the size (rounds of messages, levels of a
//   map),
//            and timings vary by some percent. Over the factor 131,072 of mesh sizes 0.1 is 3.2 times the
//            cost; a single walk over the ranks would be 131,072 times, so nothing hides in between.
//   linear   e <= 1.1: caches are left behind as sizes grow, by which a linear cost rises a little faster
//   than
//            its size; anything quadratic has an exponent near 2 where it matters.
//
// Training series are the time that a rank's own thread spends on a core (its CPU clock) in one step, forward
// to update, of models so small that kernels take next to nothing: what is left is the host's work. Waiting
// for others does not count, unless it is done by spinning; so ranks that outnumber the cores are no excuse.
// The shortest of several batches of steps counts.

#include <time.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "benchmarks/growth.h"
#include "benchmarks/scale_mesh.h"
#include "weft.h"

ABSL_FLAG(std::string, only, "", "measure only what has this in its name");
ABSL_FLAG(int, batches, 8, "batches of steps of each training; the shortest counts");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Measures how costs grow with the sizes of model, mesh and process.",
          .groups = {{"Measurement", {"only", "batches", "log_format"}}},
          .examples = {"scale", "scale --only=training/ranks --log_format=json"}};
}

// Of the calling thread.
double CpuMicroseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

// CPU microseconds that a rank's thread spends on a step of `loss`: the ranks' mean in the shortest batch.
// `train` is called on every rank with what to call for its part: it makes the model and keeps it alive.
using Steps = std::function<void(Module& model, int64_t num_tokens, absl::FunctionRef<DTensor()> loss)>;
double StepMicroseconds(const DeviceMesh& mesh, int steps,
                        const std::function<void(World&, const Steps&)>& train) {
  const int ranks = static_cast<int>(mesh.num_ranks());
  const int batches = absl::GetFlag(FLAGS_batches);
  WEFT_REQUIRE(batches >= 1, "--batches=", batches, ": expected at least 1");
  std::vector<std::vector<double>> us(ranks, std::vector<double>(batches));  // a row per rank: none shares it
  RunRanks(ranks,
           [&](World& world) {
             train(world, [&](Module& model, int64_t num_tokens, absl::FunctionRef<DTensor()> loss) {
               AdamW optimizer(model.AllParameters(), {});
               Trainer trainer(model, optimizer);
               for (int step = 0; step < 2; ++step) trainer.Step(num_tokens, loss);
               for (double& batch : us[world.rank()]) {
                 const double start = CpuMicroseconds();
                 for (int step = 0; step < steps; ++step) trainer.Step(num_tokens, loss);
                 batch = (CpuMicroseconds() - start) / steps;
               }
             });
           },
           {.threads_per_rank = 1});
  double shortest = 1e30;
  for (int batch = 0; batch < batches; ++batch) {
    double sum = 0;
    for (const std::vector<double>& rank : us) sum += rank[batch];
    shortest = std::min(shortest, sum / ranks);
  }
  return shortest;
}

GptConfig TinyGpt(int64_t layers) {
  return {.vocabulary = 32, .context = 8, .layers = layers, .heads = 2, .dim = 16};
}

// Tensor-parallel entries if the mesh has an axis tp, and FullyShard over all others, which split the batch.
Plan PlanFor(const DeviceMesh& mesh) {
  std::vector<PlanEntry> entries;
  if (mesh.FindAxis("tp") >= 0) {
    entries = {{"wte", VocabParallel("tp")},
               {"blocks.*.attn.qkv", ColumnParallel("tp")},
               {"blocks.*.attn.proj", RowParallel("tp")},
               {"blocks.*.mlp.up", ColumnParallel("tp")},
               {"blocks.*.mlp.down", RowParallel("tp")},
               {"head", ColumnParallel("tp")}};
  }
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.name == "tp") continue;
    entries.push_back({"blocks.*", FullyShard(axis.name)});
    entries.push_back({"", FullyShard(axis.name)});
  }
  return Plan(std::move(entries));
}

// A step of a GPT, one sequence of 8 tokens a rank of the axes that split the batch.
double GptStepMicroseconds(const DeviceMesh& mesh, int64_t layers, int steps) {
  return StepMicroseconds(mesh, steps, [&](World& world, const Steps& run) {
    const GptConfig config = TinyGpt(layers);
    Gpt model(config);
    const IntrusivePtr<MeshContext> context = Parallelize(model, world, mesh, PlanFor(mesh));
    Layout layout(/*ndim=*/2, mesh.num_axes());
    int64_t sequences = 1;
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      if (mesh.axis_name(axis) == "tp") continue;
      layout = layout.WithShard(axis, /*dim=*/0);
      sequences *= mesh.axis_size(axis);
    }
    const DTensor tokens = Full(context, DType::kI32, {sequences, config.context}, 1, layout);
    run(model, sequences * config.context, [&] { return model.Loss(tokens, tokens).Mean(); });
  });
}

// Many tensors of 16 elements in one module, added up: as many ops as parameters.
class Addends : public Module {
 public:
  explicit Addends(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      addends.push_back(std::make_unique<Parameter>(
          this, absl::StrCat("p", i),
          ParameterSpec{.shape = {16}, .initializer = Initializer::Normal(0, 1)}));
    }
  }
  std::vector<std::unique_ptr<Parameter>> addends;

 protected:
  DTensor Forward(const DTensor& x) override {
    DTensor sum = x;
    for (const auto& addend : addends) sum = sum + addend->Value();
    return sum;
  }
};

double AddendsStepMicroseconds(int64_t count) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=1");
  const int steps = static_cast<int>(std::max<int64_t>(1, 512 / count));
  return StepMicroseconds(mesh, steps, [&](World& world, const Steps& run) {
    Addends model(count);
    const IntrusivePtr<MeshContext> context = Parallelize(model, world, mesh, {{"", FullyShard("dp")}});
    const DTensor x = Full(context, DType::kF32, {16}, 1);
    run(model, 1, [&] { return Mean(model(x)); });
  });
}

// A plan that names every module of every block by itself.
Plan PlanOfLayers(int64_t layers) {
  std::vector<PlanEntry> entries;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string block = absl::StrCat("blocks.", layer);
    entries.push_back({absl::StrCat(block, ".attn.qkv"), ColumnParallel("tp")});
    entries.push_back({absl::StrCat(block, ".attn.proj"), RowParallel("tp")});
    entries.push_back({absl::StrCat(block, ".mlp.up"), ColumnParallel("tp")});
    entries.push_back({absl::StrCat(block, ".mlp.down"), RowParallel("tp")});
    entries.push_back({block, FullyShard("dp")});
  }
  entries.push_back({"", FullyShard("dp")});
  return Plan(std::move(entries));
}

template <class Body>
double ShortestMicroseconds(int repeats, const Body& body) {
  double shortest = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = CpuMicroseconds();
    body();
    shortest = std::min(shortest, CpuMicroseconds() - start);
  }
  return shortest;
}

double ResolveLayersMicroseconds(int64_t layers) {
  Gpt model(TinyGpt(layers));
  const Plan plan = PlanOfLayers(layers);
  const DeviceMesh mesh = DeviceMesh::Parse("dp=64,tp=2");
  return ShortestMicroseconds(3, [&] { ResolvePlan(model, mesh, plan); });
}

double TableMicroseconds(int64_t layers) {
  Gpt model(TinyGpt(layers));
  const DeviceMesh mesh = DeviceMesh::Parse("dp=64,tp=2");
  const ResolvedPlan resolved = ResolvePlan(model, mesh, PlanOfLayers(layers));
  return ShortestMicroseconds(3, [&] { resolved.ToTable(model, mesh); });
}

// From nothing to a model with values: construction, plan, parameters.
double ParallelizeMicroseconds(int64_t layers) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=1,tp=1");
  const Plan plan = PlanOfLayers(layers);
  double us = 0;
  RunRanks(1, [&](World& world) {
    us = ShortestMicroseconds(3, [&] {
      Gpt model(TinyGpt(layers));
      Parallelize(model, world, mesh, plan);
    });
  });
  return us;
}

double AddendsParallelizeMicroseconds(int64_t count) {
  double us = 0;
  RunRanks(1, [&](World& world) {
    us = ShortestMicroseconds(3, [&] {
      Addends model(count);
      Parallelize(model, world, DeviceMesh::Parse("dp=1"), {{"", FullyShard("dp")}});
    });
  });
  return us;
}

DeviceMesh SixteenRanksOn(int64_t axes) {
  const char* const meshes[] = {"a=16", "a=4,b=4", "a=4,b=2,c=2", "a=2,b=2,c=2,d=2"};
  return DeviceMesh::Parse(meshes[axes - 1]);
}

std::vector<GrowthSeries> ProcessSeries() {
  constexpr GrowthTarget kFlat = GrowthTarget::kFlat, kLinear = GrowthTarget::kLinear;
  return {
      {"training/layers",
       kLinear,
       {2, 4, 8, 16, 32, 64},
       [](int64_t n) { return GptStepMicroseconds(DeviceMesh::Parse("dp=1,tp=1"), n, /*steps=*/4); }},
      {"training/parameters", kLinear, {16, 64, 256, 1024, 4096, 16384}, AddendsStepMicroseconds},
      {"training/axes",
       kFlat,
       {1, 2, 3, 4},
       [](int64_t n) { return GptStepMicroseconds(SixteenRanksOn(n), /*layers=*/2, /*steps=*/4); }},
      {"training/ranks",
       kFlat,
       {1, 2, 4, 8, 16, 32, 64},
       [](int64_t n) {
         return GptStepMicroseconds(DeviceMesh({{"dp", n}}), /*layers=*/2, /*steps=*/4);
       }},
      {"build/resolve_plan", kLinear, {2, 8, 32, 128, 512}, ResolveLayersMicroseconds},
      {"build/table", kLinear, {2, 8, 32, 128, 512}, TableMicroseconds},
      {"build/parallelize", kLinear, {2, 8, 32, 128, 512}, ParallelizeMicroseconds},
      {"build/one_module", kLinear, {16, 64, 256, 1024, 4096, 16384}, AddendsParallelizeMicroseconds},
  };
}

int Run() {
  for (const std::vector<GrowthSeries>& all : {ProcessSeries(), MeshSeries()}) {
    for (const GrowthSeries& series : all) {
      if (absl::StrContains(series.name, absl::GetFlag(FLAGS_only))) MeasureGrowth(series);
    }
  }
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Run); }
