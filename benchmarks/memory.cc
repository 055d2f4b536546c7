// What a step keeps beside its closed forms, by what it is for, and what keeping less costs in time.
//
//   bazel run //benchmarks:memory
//
// A GPT in f32, ranks as threads. Lines:
//
//   memory/PLAN/KIND           bytes of a rank at rest: parameters, gradients after backward, the optimizer's state;
//                              the limit is ZeRO's closed form
//   memory/PLAN/grad_held      gradients between two microbatches: what zero2 has less of than zero1
//   memory/PLAN/grad_peak      the most of gradients, with their buckets, in a step of two microbatches; the limit is what
//                              they are between microbatches and at rest, those of a microbatch that are not reduced yet, and
//                              what backward makes on its way through a layer, all at once
//   memory/PLAN/whole_param    the most of a step, where parameters rest split: the root's unit and two blocks
//   memory/PLAN/peak           of all kinds together, in a step; the limit is what rests, gradients, whole parameters and
//                              what forward leaves for backward, or what an update needs, all at once
//   memory/PLAN/step           milliseconds of a step, beside one rank's on as many threads, measured right before
//   memory/offload/KIND        the same of one rank that offloads parameters, state and activations: what its memory
//                              keeps, and what is in the file instead
//   memory/offload/saved_here  what forward leaves for backward and the file does not hold, beside all that one rank leaves
//   memory/offload/peak, step  of all kinds together; milliseconds; both beside a step that offloads nothing
//   memory/ddp/check_replicas  milliseconds in which two ranks compare all that they hold alike (check_replicas_every),
//                              beside a step
//   memory/recompute/HOW/saved bytes that forward leaves for backward, per layer; the limit is the closed form
//   memory/recompute/HOW/peak  of all kinds together, in a step, beside one that keeps all; the target is what rests,
//                              gradients, what forward leaves, what is made again of one group, and what backward makes on
//                              its way through a layer, all at once
//   memory/recompute/HOW/step  milliseconds of a step, beside one that keeps all, in turn in one process
//
// Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, section 5;
//         Chen et al., "Training deep nets with sublinear memory cost", 2016.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "benchmarks/memory_training.h"
#include "parallel/plan.h"
#include "parallel/styles.h"
#include "runtime/base/flags.h"
#include "runtime/launch/run_ranks.h"

ABSL_FLAG(int64_t, layers, 6, "blocks of the model");
ABSL_FLAG(int64_t, dim, 384, "its width: a multiple of 64, the width of a head");
ABSL_FLAG(int64_t, batch, 8, "sequences of a step, over all ranks");
ABSL_FLAG(int64_t, context, 256, "tokens of a sequence");
ABSL_FLAG(int64_t, threads, 2, "of all ranks together");
ABSL_FLAG(int, steps, 5, "steps to measure, of each way in turn");

namespace weft {
namespace {

constexpr int64_t kItem = 4;
constexpr double kRecomputeTarget = 1.34;  // of a step: forward a second time, of three
constexpr double kPlanTarget = 1.10;   // of one rank's step: ranks on one machine share its cores and memory
constexpr double kCheckTarget = 0.15;  // of a step

FlagsUsage Usage() {
  return {.summary = "Measures the memory of training steps beside its closed forms, and their time.",
          .groups = {{"Model", {"layers", "dim", "batch", "context"}},
                     {"Measurement", {"threads", "steps", "log_format"}}},
          .examples = {"memory --layers=2 --dim=128"}};
}

MemoryModel ModelOf(int64_t layers) {
  return {.layers = layers,
          .dim = absl::GetFlag(FLAGS_dim),
          .batch = absl::GetFlag(FLAGS_batch),
          .context = absl::GetFlag(FLAGS_context)};
}

void OnRanks(const DeviceMesh& mesh, const std::function<void(World&)>& body) {
  const auto ranks = static_cast<int>(mesh.num_ranks());
  const auto threads = static_cast<int>(std::max<int64_t>(1, absl::GetFlag(FLAGS_threads) / ranks));
  RunRanks(ranks, body, {.threads_per_rank = threads});
}

constexpr double kGranules = 0.001;  // of a form, what allocations are rounded up by
constexpr double kPacks = 0.005;     // likewise, and what gathers of vectors are packed in

// Neither more nor less than the form.
void ReportBytes(const std::string& name, int64_t bytes, int64_t form, double tolerance = kGranules) {
  Report({.name = name,
          .value = static_cast<double>(bytes),
          .unit = "B",
          .limit = static_cast<double>(form),
          .limit_is = "closed form",
          .target = 1,
          .tolerance = tolerance});
}

// At most the limit times the target.
void ReportPeak(const std::string& name, int64_t bytes, int64_t limit, const std::string& limit_is,
                double target) {
  Report({.name = name,
          .value = static_cast<double>(bytes),
          .unit = "B",
          .limit = static_cast<double>(limit),
          .limit_is = limit_is,
          .target = target,
          .less_is_better = true});
}

void ReportStep(const std::string& name, double seconds, double beside, const std::string& beside_is,
                double target) {
  Report({.name = name,
          .value = seconds * 1e3,
          .unit = "ms",
          .limit = beside * 1e3,
          .limit_is = beside_is,
          .target = target,
          .less_is_better = true});
}

struct PlanRow {
  std::string name;
  std::string mesh;
  Plan plan;
  // What a rank has of all parameters' bytes, as 1 / part: at rest, of gradients between microbatches and before the
  // update, of AdamW's two moments each.
  int64_t param, held, grad, state;
};

// A step of one rank, median.
double StepOfOneRank() {
  double seconds = 0;
  OnRanks(DeviceMesh(), [&](World& world) {
    MemoryTraining training(world, DeviceMesh(), {}, ModelOf(absl::GetFlag(FLAGS_layers)));
    std::vector<double> steps;
    for (int i = 0; i <= absl::GetFlag(FLAGS_steps); ++i) {
      const double step = training.Step();
      if (i > 0) steps.push_back(step);
    }
    seconds = Median(steps);
  });
  return seconds;
}

// The most that a rank has in a step: what rests, and beside it gradients, whole parameters and what forward leaves, all at
// once; or, while it updates, gradients at rest, and of parameters that rest whole and are updated in parts the parts and what
// gathers them.
int64_t PeakForm(MemoryTraining& training, const PlanRow& row, int64_t whole, int64_t saved) {
  const int64_t all = training.ParameterBytes();
  const int64_t rests = training.ParameterBytes(row.param) + 2 * training.ParameterBytes(row.state);
  const bool gathers = row.param == 1 && row.state > 1;
  const int64_t update =
      training.ParameterBytes(row.grad) + (gathers ? training.ParameterBytes(row.state) + all : 0);
  return rests + std::max(all + whole + saved, update);
}

// Likewise of gradients, in a step of several microbatches.
int64_t GradientPeakForm(MemoryTraining& training, const PlanRow& row, int64_t saved) {
  const int64_t held = training.ParameterBytes(row.held);
  const int64_t rest = row.held == row.grad && row.grad == 1 ? 0 : training.ParameterBytes(row.grad);
  const int64_t unreduced = row.held > 1 ? training.ParameterBytes() : training.LargestParameterBytes();
  return held + rest + unreduced + saved / absl::GetFlag(FLAGS_layers);
}

struct PlanBytes {
  int64_t peak = 0, whole_peak = 0;       // of a step
  int64_t saved = 0, held = 0, grad = 0;  // after forward, between microbatches, after backward
  int64_t grad_peak = 0;                  // of a step of two microbatches
};

PlanBytes MeasureBytes(MemoryTraining& training) {
  PlanBytes bytes;
  training.allocator().ResetPeak();
  training.Step();
  bytes.peak = training.allocator().stats().peak_bytes;
  bytes.whole_peak = training.Peak(MemoryKind::kWholeParam);
  training.allocator().ResetPeak();
  training.RunHeldMicrobatch();
  bytes.held = training.Live(MemoryKind::kGrad);
  training.Forward();
  bytes.saved = training.Live(MemoryKind::kSaved);
  training.GoBack();
  bytes.grad = training.Live(MemoryKind::kGrad);
  bytes.grad_peak = training.Peak(MemoryKind::kGrad) + training.Peak(MemoryKind::kBucket);
  training.Update();
  return bytes;
}

void MeasurePlan(const PlanRow& row, double one_rank) {
  const DeviceMesh mesh = DeviceMesh::Parse(row.mesh);
  OnRanks(mesh, [&](World& world) {
    const int64_t layers = absl::GetFlag(FLAGS_layers);
    MemoryTraining training(world, mesh, row.plan, ModelOf(layers));
    std::vector<double> steps;
    for (int i = 0; i <= absl::GetFlag(FLAGS_steps); ++i) {  // the first learns orders
      const double step = training.Step();
      if (i > 0) steps.push_back(step);
    }
    const PlanBytes bytes = MeasureBytes(training);
    if (world.rank() != 0) return;
    const std::string name = absl::StrCat("memory/", row.name);
    ReportBytes(name + "/param", training.Live(MemoryKind::kParam), training.ParameterBytes(row.param));
    ReportBytes(name + "/grad", bytes.grad, training.ParameterBytes(row.grad));
    ReportBytes(name + "/grad_held", bytes.held, training.ParameterBytes(row.held));
    ReportPeak(name + "/grad_peak", bytes.grad_peak, GradientPeakForm(training, row, bytes.saved),
               "all at once", 1);
    ReportBytes(name + "/state", training.Live(MemoryKind::kState), 2 * training.ParameterBytes(row.state));
    int64_t whole = 0;
    if (row.param > 1) {
      whole = training.UnitBytes(/*root=*/true) +
              std::min<int64_t>(2, layers) * training.UnitBytes(/*root=*/false);
      ReportBytes(name + "/whole_param", bytes.whole_peak, whole, kPacks);
    }
    ReportPeak(name + "/peak", bytes.peak, PeakForm(training, row, whole, bytes.saved), "all at once", 1);
    ReportStep(name + "/step", Median(steps), one_rank, "one rank", kPlanTarget);
  });
}

// What is in the file is not here, but for activations of less than 4 KiB.
void MeasureOffload() {
  OnRanks(DeviceMesh(), [&](World& world) {
    const int64_t layers = absl::GetFlag(FLAGS_layers);
    const Plan all = {{"", Offload({.parameters = true, .activations = true})}};
    MemoryTraining none(world, DeviceMesh(), {}, ModelOf(layers)),
        away(world, DeviceMesh(), all, ModelOf(layers));
    std::vector<double> here, there;
    int64_t peak = 0, peak_here = 0;
    const int64_t before = none.allocator().stats().live_bytes;
    for (int i = 0; i <= absl::GetFlag(FLAGS_steps); ++i) {
      none.allocator().ResetPeak();
      const double keeping = none.Step();
      peak_here = none.allocator().stats().peak_bytes;
      none.allocator().ResetPeak();
      const double offloading = away.Step();
      if (i == 0) continue;
      here.push_back(keeping);
      there.push_back(offloading);
      peak = none.allocator().stats().peak_bytes - before;
    }
    const int64_t parameters = away.ParameterBytes();
    const auto file = [&](MemoryKind kind) { return world.host_allocator()->by_kind()[kind].live; };
    ReportBytes("memory/offload/param", file(MemoryKind::kParam), parameters);
    ReportBytes("memory/offload/state", file(MemoryKind::kState), 2 * parameters);
    away.Forward();
    const int64_t in_file = file(MemoryKind::kSaved);
    none.Forward();
    const int64_t saved = none.Live(MemoryKind::kSaved);
    none.LeaveForward();
    away.GoBack();
    ReportBytes("memory/offload/grad", file(MemoryKind::kGrad), parameters);
    // What is smaller than a page, and the last layer's, which is read at once.
    ReportPeak("memory/offload/saved_here", saved - in_file, saved, "all that is saved", 0.05);
    ReportPeak("memory/offload/peak", peak, peak_here, "nothing offloaded", 0.25);
    ReportStep("memory/offload/step", Median(there), Median(here), "nothing offloaded", kPlanTarget);
  });
}

// What a Trainer compares: parameters and the optimizer's state.
void MeasureCheck(const Plan& ddp) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  OnRanks(mesh, [&](World& world) {
    MemoryTraining training(world, mesh, ddp, ModelOf(absl::GetFlag(FLAGS_layers)));
    std::vector<double> steps, checks;
    for (int i = 0; i <= absl::GetFlag(FLAGS_steps); ++i) {
      const double step = training.Step();
      const double check = training.CheckReplicas();
      if (i == 0) continue;
      steps.push_back(step);
      checks.push_back(check);
    }
    if (world.rank() != 0) return;
    ReportStep("memory/ddp/check_replicas", Median(checks), Median(steps), "a step", kCheckTarget);
  });
}

struct RecomputeRow {
  std::string name;
  Style style;
  double rows;           // of d elements a token that a layer leaves
  bool keeps_attention;  // its log-sum-exp, too: a number per token and head
  int64_t group = 1;     // layers that are computed again together
};

int64_t SavedBytes(World& world, const Plan& plan, int64_t layers) {
  MemoryTraining training(world, DeviceMesh(), plan, ModelOf(layers));
  training.Forward();
  const int64_t saved = training.Live(MemoryKind::kSaved);
  training.LeaveForward();
  return saved;
}

// By the difference between two models, of whole groups.
int64_t SavedBytesPerLayer(World& world, const Plan& plan, int64_t group) {
  const int64_t layers = (absl::GetFlag(FLAGS_layers) + group - 1) / group * group;
  return (SavedBytes(world, plan, 2 * layers) - SavedBytes(world, plan, layers)) / layers;
}

void MeasureRecompute(const RecomputeRow& row) {
  OnRanks(DeviceMesh(), [&](World& world) {
    const int64_t layers = absl::GetFlag(FLAGS_layers), dim = absl::GetFlag(FLAGS_dim);
    const int64_t tokens = absl::GetFlag(FLAGS_batch) * absl::GetFlag(FLAGS_context);
    const Plan plan = {{"blocks.*", row.style}};
    const double numbers =
        row.rows * static_cast<double>(dim) + (row.keeps_attention ? static_cast<double>(dim) / 64 : 0);
    const std::string name = absl::StrCat("memory/recompute/", row.name);
    const int64_t per_layer = SavedBytesPerLayer(world, plan, row.group);
    ReportBytes(name + "/saved", per_layer,
                static_cast<int64_t>(static_cast<double>(tokens * kItem) * numbers));
    const int64_t saved = SavedBytes(world, plan, layers);
    const int64_t all_per_layer = SavedBytesPerLayer(world, {}, 1);
    const int64_t made_again = row.group * (all_per_layer - per_layer);
    MemoryTraining none(world, DeviceMesh(), {}, ModelOf(layers));
    const int64_t rests = none.allocator().stats().live_bytes;  // of either model
    MemoryTraining again(world, DeviceMesh(), plan, ModelOf(layers));
    std::vector<double> all, less;
    int64_t peak_of_all = 0, peak = 0;
    for (int i = 0; i <= absl::GetFlag(FLAGS_steps); ++i) {
      none.allocator().ResetPeak();
      const double keeping = none.Step();
      peak_of_all = none.allocator().stats().peak_bytes - rests;
      none.allocator().ResetPeak();
      const double recomputing = again.Step();
      peak = none.allocator().stats().peak_bytes - rests;
      if (i == 0) continue;
      all.push_back(keeping);
      less.push_back(recomputing);
    }
    // Of a small model the peak is in the update, with and without.
    const double form = static_cast<double>(4 * none.ParameterBytes() + saved + made_again + all_per_layer);
    ReportPeak(name + "/peak", peak, peak_of_all, "nothing recomputed",
               std::min(1 + kPacks, form / static_cast<double>(peak_of_all)));
    ReportStep(name + "/step", Median(less), Median(all), "nothing recomputed", kRecomputeTarget);
  });
}

int Measure() {
  const Plan ddp = {{"", DataParallel("dp")}};
  const Plan zero1 = {{"", DataParallel("dp", {.shard_state = true})}};
  const Plan zero2 = {{"", DataParallel("dp", {.shard_gradient = true})}};
  const Plan fsdp = {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}};
  const Plan hsdp = {
      {"blocks.*", FullyShard("shard")}, {"", FullyShard("shard")}, {"", DataParallel("replica")}};
  for (const PlanRow& row : std::vector<PlanRow>{{"ddp", "dp=2", ddp, 1, 1, 1, 1},
                                                 {"zero1", "dp=2", zero1, 1, 1, 2, 2},
                                                 {"zero2", "dp=2", zero2, 1, 2, 2, 2},
                                                 {"fsdp", "dp=2", fsdp, 2, 2, 2, 2},
                                                 {"hsdp", "replica=2,shard=2", hsdp, 2, 2, 2, 2}}) {
    MeasurePlan(row, StepOfOneRank());
  }
  MeasureCheck(ddp);
  MeasureOffload();
  MeasureRecompute({"full", Recompute(), 1, false});
  MeasureRecompute({"selective", Recompute({.keep = {"linear", "attention"}}), 10, true});
  MeasureRecompute({"products", Recompute({.keep = {"contract", "attention"}}), 15, true});
  MeasureRecompute({"every_2", Recompute({.every = 2}), 0.5, false, /*group=*/2});
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Measure); }
