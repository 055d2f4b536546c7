// What a step keeps beside its closed forms, by what it is for, and what keeping less costs in time.
//
//   bazel run //benchmarks:memory
//
// A GPT in f32, ranks as threads. Lines:
//
//   memory/PLAN/KIND           bytes of a rank at rest: parameters, gradients after backward, the optimizer's state;
//                              the limit is ZeRO's closed form
//   memory/PLAN/whole_param    the most of a step, where parameters rest split: the root's unit and two blocks
//   memory/PLAN/peak           of all kinds together, in a step; the limit is what rests, gradients, whole parameters and
//                              what forward leaves for backward, as if all of it were there at once
//   memory/PLAN/step           milliseconds of a step, beside one rank's on as many threads, measured right before
//   memory/offload/KIND        the same of one rank that offloads parameters, state and activations: what its memory
//                              keeps, and what is in the file instead
//   memory/offload/saved       what forward leaves for backward in the file, beside all that one rank leaves
//   memory/offload/peak, step  of all kinds together; milliseconds; both beside a step that offloads nothing
//   memory/ddp/check_replicas  milliseconds in which two ranks compare all that they hold alike (check_replicas_every),
//                              beside a step
//   memory/recompute/HOW/saved bytes that forward leaves for backward, per layer; the limit is the closed form
//   memory/recompute/HOW/step  milliseconds of a step, beside one that keeps all, in turn in one process
//
// Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, section 5;
//         Chen et al., "Training deep nets with sublinear memory cost", 2016.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/figure.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "parallel/parallelize.h"
#include "parallel/replicas.h"
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
constexpr int64_t kVocabulary = 256;
constexpr double kRecomputeTarget = 1.34;  // of a step: forward a second time, of three
constexpr double kPlanTarget = 1.10;   // of one rank's step: ranks on one machine share its cores and memory
constexpr double kCheckTarget = 0.15;  // of a step

FlagsUsage Usage() {
  return {.summary = "Measures the memory of training steps beside its closed forms, and their time.",
          .groups = {{"Model", {"layers", "dim", "batch", "context"}},
                     {"Measurement", {"threads", "steps", "log_format"}}},
          .examples = {"memory --layers=2 --dim=128"}};
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A model under a plan, with all that a step needs.
class Training {
 public:
  Training(World& world, const DeviceMesh& mesh, const Plan& plan, int64_t layers)
      : model_({.vocabulary = kVocabulary,
                .context = absl::GetFlag(FLAGS_context),
                .layers = layers,
                .heads = absl::GetFlag(FLAGS_dim) / 64,
                .dim = absl::GetFlag(FLAGS_dim)}),
        context_(Parallelize(model_, world, mesh, plan, {})),
        optimizer_(model_.AllParameters(), AdamWOptions()) {
    const Shape shape = {absl::GetFlag(FLAGS_batch), absl::GetFlag(FLAGS_context)};
    const Tensor ones = Tensor::FromValues<int32_t>(shape, std::vector<int32_t>(shape.num_elements(), 1));
    Layout rows(shape.ndim(), mesh.num_axes());
    for (int axis = 0; axis < mesh.num_axes(); ++axis) rows = rows.WithShard(axis, 0);
    tokens_ = DTensor::Distribute(context_, ones, rows);
  }

  void Forward() { loss_ = model_.Loss(tokens_, tokens_).Mean(); }
  void GoBack() {
    Backward(std::exchange(loss_, DTensor()));
    for (const Parameter* parameter : optimizer_.parameters()) parameter->grad().ToLocal();  // settled
  }
  void Update() {
    optimizer_.Step(1e-4);
    optimizer_.ZeroGrad();
    for (const Parameter* parameter : optimizer_.parameters()) parameter->at_rest().ToLocal();
  }
  double Step() {
    const double begun = Now();
    Forward();
    GoBack();
    Update();
    return Now() - begun;
  }
  void CheckReplicas() {
    std::vector<NamedValue> values;
    for (const Parameter* parameter : optimizer_.parameters()) {
      values.push_back({parameter->path(), parameter->at_rest()});
    }
    for (const auto& [name, state] : optimizer_.State()) values.push_back({name, state});
    WEFT_CHECK(!CompareReplicas(*context_, values), "replicas differ");
  }
  void LeaveForward() { loss_ = DTensor(); }

  int64_t Live(MemoryKind kind) const { return context_->allocator()->by_kind()[kind].live; }
  int64_t Peak(MemoryKind kind) const { return context_->allocator()->by_kind()[kind].peak; }
  Allocator& allocator() { return *context_->allocator(); }
  int64_t ParameterBytes() {
    int64_t bytes = 0;
    for (const Parameter* parameter : model_.RegisteredParameters()) {
      bytes += parameter->spec().shape.num_elements() * kItem;
    }
    return bytes;
  }
  // Of the root's unit, or of one block's.
  int64_t UnitBytes(bool root) {
    int64_t bytes = 0;
    for (const Parameter* parameter : model_.RegisteredParameters()) {
      const bool is_here = root ? !absl::StartsWith(parameter->path(), "blocks.")
                                : absl::StartsWith(parameter->path(), "blocks.0.");
      if (is_here) bytes += parameter->spec().shape.num_elements() * kItem;
    }
    return bytes;
  }

 private:
  Gpt model_;
  IntrusivePtr<MeshContext> context_;
  AdamW optimizer_;
  DTensor tokens_, loss_;
};

void OnRanks(const DeviceMesh& mesh, const std::function<void(World&)>& body) {
  const auto ranks = static_cast<int>(mesh.num_ranks());
  const auto threads = static_cast<int>(std::max<int64_t>(1, absl::GetFlag(FLAGS_threads) / ranks));
  RunRanks(ranks, body, {.threads_per_rank = threads});
}

void ReportBytes(const std::string& name, int64_t bytes, double form) {
  Report({.name = name,
          .value = static_cast<double>(bytes),
          .unit = "B",
          .limit = form,
          .limit_is = "closed form",
          .target = 1.001,  // granules of allocations
          .less_is_better = true});
}

struct PlanRow {
  std::string name;
  std::string mesh;
  Plan plan;
  // What a rank has of all parameters' bytes, as 1 / part: at rest, of gradients, of AdamW's two moments each.
  int64_t param, grad, state;
};

// A step of one rank, median.
double StepOfOneRank() {
  double seconds = 0;
  OnRanks(DeviceMesh(), [&](World& world) {
    Training training(world, DeviceMesh(), {}, absl::GetFlag(FLAGS_layers));
    std::vector<double> steps;
    for (int i = 0; i <= absl::GetFlag(FLAGS_steps); ++i) {
      const double step = training.Step();
      if (i > 0) steps.push_back(step);
    }
    seconds = Median(steps);
  });
  return seconds;
}

void MeasurePlan(const PlanRow& row, double one_rank) {
  const DeviceMesh mesh = DeviceMesh::Parse(row.mesh);
  OnRanks(mesh, [&](World& world) {
    Training training(world, mesh, row.plan, absl::GetFlag(FLAGS_layers));
    std::vector<double> steps;
    for (int i = 0; i <= absl::GetFlag(FLAGS_steps); ++i) {  // the first learns orders
      training.allocator().ResetPeak();
      const double step = training.Step();
      if (i > 0) steps.push_back(step);
    }
    const int64_t peak = training.allocator().stats().peak_bytes;
    training.Forward();
    const auto saved = static_cast<double>(training.Live(MemoryKind::kSaved));
    training.GoBack();
    const int64_t grad = training.Live(MemoryKind::kGrad);
    training.Update();
    if (world.rank() != 0) return;
    const std::string name = absl::StrCat("memory/", row.name);
    const auto all = static_cast<double>(training.ParameterBytes());
    ReportBytes(name + "/param", training.Live(MemoryKind::kParam), all / static_cast<double>(row.param));
    ReportBytes(name + "/grad", grad, all / static_cast<double>(row.grad));
    ReportBytes(name + "/state", training.Live(MemoryKind::kState), 2 * all / static_cast<double>(row.state));
    double whole = 0;
    if (row.param > 1) {
      whole = static_cast<double>(training.UnitBytes(/*root=*/true) + 2 * training.UnitBytes(/*root=*/false));
      ReportBytes(name + "/whole_param", training.Peak(MemoryKind::kWholeParam), whole);
    }
    Report({.name = name + "/peak",
            .value = static_cast<double>(peak),
            .unit = "B",
            .limit = all / static_cast<double>(row.param) + all + 2 * all / static_cast<double>(row.state) +
                     whole + saved,
            .limit_is = "all at once",
            .target = 1,
            .less_is_better = true});
    Report({.name = name + "/step",
            .value = Median(steps) * 1e3,
            .unit = "ms",
            .limit = one_rank * 1e3,
            .limit_is = "one rank",
            .target = kPlanTarget,
            .less_is_better = true});
  });
}

// What is in the file is not here, but for activations of less than 4 KiB.
void MeasureOffload() {
  OnRanks(DeviceMesh(), [&](World& world) {
    const int64_t layers = absl::GetFlag(FLAGS_layers);
    const Plan all = {{"", Offload({.parameters = true, .activations = true})}};
    Training none(world, DeviceMesh(), {}, layers), away(world, DeviceMesh(), all, layers);
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
    const auto parameters = static_cast<double>(away.ParameterBytes());
    const auto file = [&](MemoryKind kind) { return world.host_allocator()->by_kind()[kind].live; };
    ReportBytes("memory/offload/param", file(MemoryKind::kParam), parameters);
    ReportBytes("memory/offload/state", file(MemoryKind::kState), 2 * parameters);
    away.Forward();
    const int64_t saved = file(MemoryKind::kSaved);
    none.Forward();
    const int64_t saved_here = none.Live(MemoryKind::kSaved);
    none.LeaveForward();
    away.GoBack();
    ReportBytes("memory/offload/grad", file(MemoryKind::kGrad), parameters);
    Report({.name = "memory/offload/saved",
            .value = static_cast<double>(saved),
            .unit = "B",
            .limit = static_cast<double>(saved_here),
            .limit_is = "all that is saved",
            .target = 0.95});  // but what is smaller than a page, and the last layer's, which is read at once
    Report({.name = "memory/offload/peak",
            .value = static_cast<double>(peak),
            .unit = "B",
            .limit = static_cast<double>(peak_here),
            .limit_is = "nothing offloaded",
            .target = 0.25,
            .less_is_better = true});
    Report({.name = "memory/offload/step",
            .value = Median(there) * 1e3,
            .unit = "ms",
            .limit = Median(here) * 1e3,
            .limit_is = "nothing offloaded",
            .target = kPlanTarget,
            .less_is_better = true});
  });
}

// What a Trainer compares: parameters and the optimizer's state.
void MeasureCheck(const Plan& ddp) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
  OnRanks(mesh, [&](World& world) {
    Training training(world, mesh, ddp, absl::GetFlag(FLAGS_layers));
    std::vector<double> steps, checks;
    for (int i = 0; i <= absl::GetFlag(FLAGS_steps); ++i) {
      const double step = training.Step();
      const double begun = Now();
      training.CheckReplicas();
      if (i == 0) continue;
      steps.push_back(step);
      checks.push_back(Now() - begun);
    }
    if (world.rank() != 0) return;
    Report({.name = "memory/ddp/check_replicas",
            .value = Median(checks) * 1e3,
            .unit = "ms",
            .limit = Median(steps) * 1e3,
            .limit_is = "a step",
            .target = kCheckTarget,
            .less_is_better = true});
  });
}

struct RecomputeRow {
  std::string name;
  Style style;
  double rows;           // of d elements a token that a layer leaves
  bool keeps_attention;  // its log-sum-exp, too: a number per token and head
};

int64_t SavedBytes(World& world, const Plan& plan, int64_t layers) {
  Training training(world, DeviceMesh(), plan, layers);
  training.Forward();
  const int64_t saved = training.Live(MemoryKind::kSaved);
  training.LeaveForward();
  return saved;
}

void MeasureRecompute(const RecomputeRow& row) {
  OnRanks(DeviceMesh(), [&](World& world) {
    const int64_t layers = absl::GetFlag(FLAGS_layers);
    const int64_t tokens = absl::GetFlag(FLAGS_batch) * absl::GetFlag(FLAGS_context);
    const Plan plan = {{"blocks.*", row.style}};
    const int64_t per_layer =
        (SavedBytes(world, plan, 2 * layers) - SavedBytes(world, plan, layers)) / layers;
    const std::string name = absl::StrCat("memory/recompute/", row.name);
    const double form = static_cast<double>(tokens * kItem) *
                        (row.rows * static_cast<double>(absl::GetFlag(FLAGS_dim)) +
                         (row.keeps_attention ? static_cast<double>(absl::GetFlag(FLAGS_dim)) / 64 : 0));
    ReportBytes(name + "/saved", per_layer, form);
    Training none(world, DeviceMesh(), {}, layers), again(world, DeviceMesh(), plan, layers);
    std::vector<double> all, less;
    for (int i = 0; i <= absl::GetFlag(FLAGS_steps); ++i) {
      const double keeping = none.Step(), recomputing = again.Step();
      if (i == 0) continue;
      all.push_back(keeping);
      less.push_back(recomputing);
    }
    Report({.name = name + "/step",
            .value = Median(less) * 1e3,
            .unit = "ms",
            .limit = Median(all) * 1e3,
            .limit_is = "nothing recomputed",
            .target = kRecomputeTarget,
            .less_is_better = true});
  });
}

int Measure() {
  const Plan ddp = {{"", DataParallel("dp")}};
  const Plan zero1 = {{"", DataParallel("dp", {.shard_state = true})}};
  const Plan zero2 = {{"", DataParallel("dp", {.shard_gradient = true})}};
  const Plan fsdp = {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}};
  const Plan hsdp = {
      {"blocks.*", FullyShard("shard")}, {"", FullyShard("shard")}, {"", DataParallel("replica")}};
  for (const PlanRow& row : std::vector<PlanRow>{{"ddp", "dp=2", ddp, 1, 1, 1},
                                                 {"zero1", "dp=2", zero1, 1, 2, 2},
                                                 {"zero2", "dp=2", zero2, 1, 2, 2},
                                                 {"fsdp", "dp=2", fsdp, 2, 2, 2},
                                                 {"hsdp", "replica=2,shard=2", hsdp, 2, 2, 2}}) {
    MeasurePlan(row, StepOfOneRank());
  }
  MeasureCheck(ddp);
  MeasureOffload();
  MeasureRecompute({"full", Recompute(), 1, false});
  MeasureRecompute({"selective", Recompute({.keep = {"linear", "attention"}}), 10, true});
  MeasureRecompute({"products", Recompute({.keep = {"contract", "attention"}}), 15, true});
  MeasureRecompute({"every_2", Recompute({.every = 2}), 0.5, false});
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Measure); }
