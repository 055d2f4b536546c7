// Trains a detector whose camera branch, laser branch and fusion lie on ranks of their own, each under its own styles.
//
//   bazel run //examples:train_perception                                          two ranks each: ddp, fsdp, tensor parallel
//   bazel run //examples:train_perception -- --camera=dp=2,tp=2 --lidar= --fusion=tp=2
//   bazel run //examples:train_perception -- --one_device                          the same program on one rank
//
// The model (examples/perception/perception.h) is a single-device program, the plan (examples/perception/perception_plan.h) says what lies where.
// Scenes are made as they are needed. Prints the plan, progress lines, and on scenes of its own how often the class is right and
// how far off the object's middle is.

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "dtensor/functions.h"
#include "dtensor/optim/adamw.h"
#include "examples/flag_checks.h"
#include "examples/json_line.h"
#include "examples/perception/perception.h"
#include "examples/perception/perception_plan.h"
#include "examples/perception/scenes.h"
#include "parallel/parallelize.h"
#include "parallel/trainer.h"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/base/flags.h"
#include "runtime/launch/run_world.h"

ABSL_FLAG(std::string, camera, "dp=2", "mesh of the camera's ranks, of axes dp, fs and tp; empty: one rank");
ABSL_FLAG(std::string, lidar, "fs=2", "mesh of the laser's ranks, likewise");
ABSL_FLAG(std::string, fusion, "tp=2", "mesh of the ranks that join them, likewise");
ABSL_FLAG(bool, one_device, false, "train on a single rank, instead of these meshes");
ABSL_FLAG(int64_t, batch, 32, "scenes of a step");
ABSL_FLAG(int64_t, steps, 300, "steps to train");
ABSL_FLAG(double, lr, 3e-3, "largest learning rate");
ABSL_FLAG(int64_t, log_every, 50, "steps between progress lines");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object a line on stdout");
ABSL_FLAG(uint64_t, seed, 1337, "of initial values, scenes and dropout");

namespace weft {
namespace {

constexpr int64_t kTestScenes = 256;

struct PerceptionRun {
  PerceptionPlan spread;
  int64_t batch = 0;
  int64_t steps = 0;
  double lr = 0;
  int64_t log_every = 0;
  bool json = false;
  uint64_t seed = 0;
};

// A batch where it is wanted: pictures on the camera's ranks, points on the laser's, what is right on the heads'.
struct Batch {
  Measurements measured;
  DTensor classes, centers;
};

Batch BatchOf(Perception& model, uint64_t seed, int64_t first, int64_t count) {
  const SceneBatch scenes = MakeScenes(seed, first, count);
  const auto lay = [](const Tensor& full, const Module& on) {
    return DTensor::Distribute(on.context(), full, Layout(full.ndim(), on.context()->mesh().num_axes()));
  };
  return {.measured = Measurements{.images = lay(scenes.images, model.camera),
                                   .points = lay(scenes.points, model.lidar)},
          .classes = lay(scenes.classes, model.heads),
          .centers = lay(scenes.centers, model.heads)};
}

void Evaluate(Perception& model, const PerceptionRun& run, bool speaks) {
  RankState& state = model.context()->state();
  const NoGradGuard no_grad(state);
  const EvaluationGuard evaluation(state);
  const SceneBatch scenes = MakeScenes(run.seed + 1, 0, kTestScenes);
  const Detections found = model(BatchOf(model, run.seed + 1, 0, kTestScenes).measured);
  // What leaves the model is on all ranks.
  const std::vector<int64_t> classes = Argmax(found.scores, /*dim=*/1).FullTensor().ToVector<int64_t>();
  const std::vector<int32_t> right = scenes.classes.ToVector<int32_t>();
  const std::vector<float> centers = found.centers.FullTensor().ToVector<float>();
  const std::vector<float> true_centers = scenes.centers.ToVector<float>();
  double num_right = 0, distance = 0;
  for (int64_t i = 0; i < kTestScenes; ++i) {
    num_right += classes[i] == right[i] ? 1 : 0;
    double squares = 0;
    for (int64_t dim = 3 * i; dim < 3 * i + 3; ++dim)
      squares += std::pow(centers[dim] - true_centers[dim], 2);
    distance += std::sqrt(squares);
  }
  if (!speaks) return;
  const double accuracy = num_right / kTestScenes, mean_distance = distance / kTestScenes;
  if (run.json) return PrintJson({{"test_accuracy", accuracy}, {"test_distance", mean_distance}});
  std::printf("%.4f of the test's classes are right; middles are off by %.4f on average\n", accuracy,
              mean_distance);
}

void PrintStep(const PerceptionRun& run, const StepMetrics& metrics) {
  if (run.json) {
    PrintJson({{"step", metrics.step}, {"loss", metrics.loss}, {"grad_norm", metrics.grad_norm}});
  } else if (metrics.step % run.log_every == 0) {
    std::printf("step %4" PRId64 " of %" PRId64 "  loss %.4f  %.0f scenes/s\n", metrics.step, run.steps,
                metrics.loss, metrics.tokens_per_s);
  }
  std::fflush(stdout);
}

// What every rank runs.
void TrainRank(World& world, const PerceptionRun& run) {
  Perception model({.classes = kSceneClasses});
  const IntrusivePtr<MeshContext> context = Bind(world, run.spread.mesh);
  context->state().set_seed(run.seed);
  Parallelize(model, context, run.spread.plan);
  const bool speaks = world.rank() == 0;
  if (speaks && !run.json && !run.spread.plan.entries().empty())
    std::printf("%s", run.spread.plan.ToString().c_str());
  AdamW optimizer(model.AllParameters(), {});
  const WarmupCosine schedule = {
      .peak = run.lr, .floor = 0, .warmup_steps = run.steps / 20, .total_steps = run.steps};
  const auto on_metrics = [&](Trainer&, const StepMetrics& metrics) {
    if (speaks) PrintStep(run, metrics);
  };
  Trainer trainer(model, optimizer, {.schedule = schedule, .callbacks = {{.on_metrics = on_metrics}}});
  for (int64_t step = 0; step < run.steps; ++step) {
    const Batch batch = BatchOf(model, run.seed, step * run.batch, run.batch);
    trainer.Step(run.batch,
                 [&model, batch] { return model.Loss(batch.measured, batch.classes, batch.centers); });
  }
  trainer.Flush();
  Evaluate(model, run, speaks);
}

int Train() {
  OneOf("log_format", absl::GetFlag(FLAGS_log_format), {"text", "json"});
  PerceptionRun run = {.spread = PerceptionPlan{},
                       .batch = AtLeast(2, "batch", absl::GetFlag(FLAGS_batch)),
                       .steps = AtLeast(1, "steps", absl::GetFlag(FLAGS_steps)),
                       .lr = InRange(0, 1e9, "lr", absl::GetFlag(FLAGS_lr)),
                       .log_every = AtLeast(1, "log_every", absl::GetFlag(FLAGS_log_every)),
                       .json = absl::GetFlag(FLAGS_log_format) == "json",
                       .seed = absl::GetFlag(FLAGS_seed)};
  if (absl::GetFlag(FLAGS_one_device)) {
    for (const char* mesh : {"camera", "lidar", "fusion"}) {
      WEFT_REQUIRE(!IsGiven(mesh), "--", mesh, "=", FlagNamed(mesh).CurrentValue(),
                   ": expected no --one_device beside it");
    }
  } else {
    run.spread = MakePerceptionPlan({.camera = absl::GetFlag(FLAGS_camera),
                                     .lidar = absl::GetFlag(FLAGS_lidar),
                                     .fusion = absl::GetFlag(FLAGS_fusion)});
  }
  RunWorld(static_cast<int>(run.spread.mesh.num_ranks()), [&](World& world) { TrainRank(world, run); });
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  return weft::RunMain(
      argc, argv,
      {.summary = "Trains a detector whose branches lie on ranks of their own, on scenes that it makes.",
       .groups = {{"Spreading", {"camera", "lidar", "fusion", "one_device"}},
                  {"Training", {"batch", "steps", "lr", "seed"}},
                  {"Reporting", {"log_every", "log_format"}}},
       .examples = {"bazel run //examples:train_perception",
                    "bazel run //examples:train_perception -- --camera=dp=2,tp=2 --lidar= --fusion=tp=2"}},
      [] { return weft::Train(); });
}
