#include "examples/images/image_training.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/str_cat.h"
#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/nn/summary.h"
#include "dtensor/optim/adamw.h"
#include "examples/checkpoint_flags.h"
#include "examples/flag_checks.h"
#include "examples/images/image_accuracy.h"
#include "examples/json_line.h"
#include "examples/schedule_flag.h"
#include "examples/stop_signal.h"
#include "nlohmann/json.hpp"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/stages.h"
#include "parallel/trainer.h"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/data/default_text.h"
#include "runtime/data/utf8.h"
#include "runtime/launch/run_world.h"

ABSL_FLAG(std::string, mesh, "dp=2", "axes and their sizes, of pp, dp and tp; empty: a single rank");
ABSL_FLAG(std::string, plan, "ddp", "what axis dp does: ddp or fsdp");
ABSL_FLAG(std::string, schedule, "1f1b", "of the stages along axis pp, by name (docs/pipeline.md)");
ABSL_FLAG(std::string, data, "",
          "folder with the four IDX files; empty: Fashion-MNIST, as setup.sh fetches it");
ABSL_FLAG(int64_t, batch, 100, "images of a step, over all ranks");
ABSL_FLAG(int64_t, microbatches, 1,
          "parts that a step's batch comes in, whose gradients add up; a batch norm sees one at a time");
ABSL_FLAG(int64_t, steps, 0, "steps to train; 0: the program's own number");
ABSL_FLAG(double, lr, 0, "largest learning rate; 0: the program's own");
ABSL_FLAG(double, weight_decay, 0.01, "AdamW's decay of weights, per step and unit of learning rate");
ABSL_FLAG(int64_t, eval_every, 500, "steps between evaluations; 0: at the end alone");
ABSL_FLAG(int64_t, log_every, 50, "steps between progress lines");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object a line on stdout");
ABSL_FLAG(uint64_t, seed, 1337, "of initial values, batches and dropout");
ABSL_FLAG(int64_t, check_replicas, 0,
          "for debugging: every so many steps compare what ranks hold alike, bit by bit; 0: never");
ABSL_FLAG(bool, print_model, false, "print the model's modules, layouts and flops, and stop");

namespace weft {
namespace {

FlagsUsage Usage(const ImageProgram& program) {
  const std::string command = absl::StrCat("bazel run //examples:", program.name);
  return {
      .summary = program.summary,
      .groups = {{"Spreading", {"mesh", "plan", "schedule"}},
                 {"Training", {"data", "batch", "microbatches", "steps", "lr", "weight_decay", "seed"}},
                 CheckpointFlags(),
                 {"Reporting", {"eval_every", "log_every", "log_format", "check_replicas", "print_model"}}},
      .examples = {command, absl::StrCat(command, " -- --mesh=dp=2 --plan=fsdp"),
                   absl::StrCat(command, " -- --mesh=tp=2"),
                   absl::StrCat(command, " -- --mesh=pp=2 --microbatches=4"),
                   absl::StrCat(command, " -- --mesh= --steps=100")}};
}

// The flags, checked.
struct ImageRun {
  DeviceMesh mesh;
  Plan plan;
  std::optional<PipelineSchedule> schedule;  // of a mesh with an axis pp
  int64_t batch = 0;
  int64_t microbatches = 0;
  int64_t steps = 0;
  double lr = 0;
  int64_t eval_every = 0;
  int64_t log_every = 0;
  bool json = false;
  uint64_t seed = 0;
  double weight_decay = 0;
  int64_t check_replicas = 0;  // steps; 0: never
  bool print_model = false;
  std::optional<CheckpointOptions> checkpoints;
  std::string data = {};                  // the folder of the images
  StateTexts texts = {};                  // with checkpoints: what a run that goes on there takes over
  std::optional<SavedStep> resumed = {};  // the step whose flags were taken over
  ParsedFlags parsed = {};
};

// What a run that goes on in a folder takes over, and what of it may not change.
// Errors: InvalidArgument for a folder of images whose path is not UTF-8, which is what texts are kept in.
StateTexts FlagTexts() {
  nlohmann::json flags;
  for (const char* name : {"batch", "batch_ranks", "microbatches", "steps", "lr", "weight_decay", "seed"}) {
    flags[name] = absl::FindCommandLineFlag(name)->CurrentValue();
  }
  std::string data = absl::GetFlag(FLAGS_data);
  if (!data.empty()) data = std::filesystem::absolute(UserPath(data)).string();
  WEFT_REQUIRE(IsUtf8(data), "--data=", PrintableText(data),
               ": expected UTF-8, which checkpoints keep it in; rename it, or save nothing");
  flags["data"] = data;
  return {{"weft.flags", flags.dump()}};
}

// Steps of before the first life of a run said its own learning rate have 0, which stands for it.
std::map<std::string, std::string> FlagsOf(const StateTexts& texts, const ImageProgram& program) {
  const auto text = texts.find("weft.flags");
  const auto flags = nlohmann::json::parse(text == texts.end() ? "" : text->second, nullptr, false);
  if (!flags.is_object()) {
    Throw(absl::StatusCode::kDataLoss, "'", CheckpointFolder(), "' has no checkpoint of this program");
  }
  auto values = flags.get<std::map<std::string, std::string>>();
  const auto lr = values.find("lr");
  if (lr != values.end() && lr->second == "0") lr->second = absl::StrCat(program.lr);
  return values;
}

// Of a mesh with an axis pp.
std::optional<PipelineSchedule> ScheduleFromFlags(const DeviceMesh& mesh, int64_t microbatches) {
  const int axis = mesh.FindAxis("pp");
  WEFT_REQUIRE(axis >= 0 || !IsGiven("schedule"), "--schedule: the mesh (", mesh.ToString(),
               ") has no axis pp");
  if (axis < 0) return std::nullopt;
  return TrainersSchedule(absl::GetFlag(FLAGS_schedule), {.ranks = static_cast<int>(mesh.axis_size(axis)),
                                                          .microbatches = static_cast<int>(microbatches)});
}

// All flags are read here, before there are ranks.
ImageRun RunFromFlags(const ImageProgram& program) {
  const std::string format = absl::GetFlag(FLAGS_log_format);
  WEFT_REQUIRE(format == "text" || format == "json", "--log_format=", format, ": expected text or json");
  ImageRun run = {.mesh = DeviceMesh::Parse(absl::GetFlag(FLAGS_mesh)),
                  .plan = {},
                  .schedule = std::nullopt,
                  .batch = absl::GetFlag(FLAGS_batch),
                  .microbatches = absl::GetFlag(FLAGS_microbatches),
                  .steps = absl::GetFlag(FLAGS_steps),
                  .lr = absl::GetFlag(FLAGS_lr),
                  .eval_every = absl::GetFlag(FLAGS_eval_every),
                  .log_every = absl::GetFlag(FLAGS_log_every),
                  .json = format == "json",
                  .seed = absl::GetFlag(FLAGS_seed),
                  .weight_decay = absl::GetFlag(FLAGS_weight_decay),
                  .check_replicas = absl::GetFlag(FLAGS_check_replicas),
                  .print_model = absl::GetFlag(FLAGS_print_model),
                  .checkpoints = CheckpointOptionsFromFlags()};
  WEFT_REQUIRE(run.batch >= 2, "--batch=", run.batch, ": expected at least 2 images");
  WEFT_REQUIRE(run.microbatches >= 1 && run.microbatches <= run.batch, "--microbatches=", run.microbatches,
               ": expected 1 to --batch=", run.batch);
  WEFT_REQUIRE(run.steps >= 0, "--steps=", run.steps, ": expected at least 0");
  WEFT_REQUIRE(run.lr >= 0 && std::isfinite(run.lr), "--lr=", run.lr, ": expected a number of at least 0");
  InRange(0, 1e9, "weight_decay", run.weight_decay);
  WEFT_REQUIRE(run.eval_every >= 0, "--eval_every=", run.eval_every, ": expected at least 0");
  WEFT_REQUIRE(run.log_every >= 1, "--log_every=", run.log_every, ": expected at least 1");
  WEFT_REQUIRE(run.check_replicas >= 0, "--check_replicas=", run.check_replicas, ": expected at least 0");
  if (run.lr == 0) absl::SetFlag(&FLAGS_lr, run.lr = program.lr);  // which the checkpoints say, too
  const ScaledBatch scaled = BatchForRanks(run.batch, /*multiple=*/1, run.mesh.num_ranks(),
                                           /*least=*/std::max<int64_t>(2, run.microbatches));
  run.batch = scaled.batch;
  run.lr *= scaled.rate;
  if (run.checkpoints) run.texts = FlagTexts();
  if (run.steps == 0) run.steps = program.steps;
  run.schedule = ScheduleFromFlags(run.mesh, run.microbatches);
  WEFT_REQUIRE(!run.schedule || !run.print_model, "--print_model: a rank of the mesh (", run.mesh.ToString(),
               ") has a part of the model; leave pp out");
  run.plan = ImagePlan(run.mesh, absl::GetFlag(FLAGS_plan), program, run.schedule);
  return run;
}

AxisList BatchAxes(const DeviceMesh& mesh) {
  const int axis = mesh.FindAxis("dp");
  return axis < 0 ? AxisList{} : AxisList{axis};
}

void PrintStep(const ImageRun& run, const StepMetrics& metrics) {
  if (run.json) {
    PrintJson({{"step", metrics.step},
               {"loss", metrics.loss},
               {"grad_norm", metrics.grad_norm},
               {"images_per_s", metrics.tokens_per_s}});
  } else if (metrics.step % run.log_every == 0) {
    std::printf("step %5" PRId64 " of %" PRId64 "  loss %.4f  %.0f images/s\n", metrics.step, run.steps,
                metrics.loss, metrics.tokens_per_s);
  }
  std::fflush(stdout);
}

bool Evaluates(const ImageRun& run, int64_t step) {
  return step == run.steps || (run.eval_every > 0 && step % run.eval_every == 0);
}

void PrintAccuracy(const ImageRun& run, int64_t step, double accuracy) {
  if (run.json) return PrintJson({{"step", step}, {"test_accuracy", accuracy}});
  std::printf("step %5" PRId64 ": test accuracy %.4f\n", step, accuracy);
  std::fflush(stdout);
}

// Returns the step whose flags they are; nothing, if the run begins.
std::optional<SavedStep> TakeOverFlags(const ImageProgram& program, const ParsedFlags& parsed) {
  const std::optional<SavedStep> saved = FindSavedStep();
  if (!saved) return std::nullopt;
  const auto values = FlagsOf(saved->texts, program);
  RestoreFlags(values, parsed, {"seed"});
  ApplyBatchPolicy(values, parsed, {"lr"});
  return saved;
}

// `saved`: the texts of a step; those of before there was a text of the images pass.
// Errors: InvalidArgument, if it was trained on other images than the run has.
void RequireSameImages(const StateTexts& saved, const ImageRun& run) {
  const auto images = saved.find("weft.images");
  WEFT_REQUIRE(images == saved.end() || images->second == run.texts.at("weft.images"),
               "--checkpoint_dir=", CheckpointFolder(), ": it was trained on other images than '", run.data,
               "'");
}

// Errors: as RequireSameFlags and RequireSameImages.
void ResumeRun(const ImageRun& run, const ImageProgram& program, CheckpointManager& checkpoints, State& state,
               Trainer& trainer) {
  const std::optional<int64_t> step = checkpoints.Resume(state);
  if (!step) return;
  trainer.set_step(*step);
  RequireSameImages(checkpoints.resumed_texts(), run);
  if (run.resumed && run.resumed->step == *step) return;
  const auto loaded = FlagsOf(checkpoints.resumed_texts(), program);
  const auto now = FlagsOf(run.texts, program);
  if (!run.resumed) return RequireSameFlags(*step, loaded, now, now);
  RequireSameFlags(*step, WithGiven(loaded, now, run.parsed), FlagsOf(run.resumed->texts, program), now);
}

void PrintModel(Module& model, const Microbatch& batch, bool speaks) {
  const ModelSummary summary = Summarize(model, [&] { model(batch.inputs[0]); });
  if (speaks) std::printf("%s", summary.ToTable().c_str());
}

// The images of a step, in parts of as many, or of one less.
std::vector<Microbatch> MakeParts(const IntrusivePtr<MeshContext>& context, const ImageRun& run,
                                  const ImageSet& train, int64_t step) {
  std::vector<Microbatch> parts;
  int64_t first = 0;
  for (int64_t part = 1; part <= run.microbatches; ++part) {
    const int64_t end = run.batch * part / run.microbatches;
    const ImageBatch batch = MakeImageBatch(context, BatchAxes(run.mesh), train, end - first, [&](int64_t i) {
      return TrainIndex(train, run.seed, step, first + i);
    });
    parts.push_back({.inputs = {batch.images}, .targets = batch.labels, .batch_offset = first});
    first = end;
  }
  return parts;
}

void TrainStep(const ImageRun& run, std::vector<Microbatch> batch, SegmentedModule& model,
               PipelineExecutor* pipeline, Trainer& trainer) {
  const bool stop = StopSignal() != 0;
  if (pipeline != nullptr) {
    trainer.Step(*pipeline, std::move(batch), stop);
    return;
  }
  // The trainer keeps what it may run again.
  const auto parts = std::make_shared<const std::vector<Microbatch>>(std::move(batch));
  const auto loss = [&model, parts](int i) {
    const Microbatch& part = (*parts)[i];
    const BatchOffsetGuard offset(model.context()->state(), part.batch_offset);
    return model.LossOf({model(part.inputs[0])}, part.targets);
  };
  if (run.microbatches == 1) {
    trainer.Step(
        run.batch, [loss] { return loss(0).Mean(); }, stop);
    return;
  }
  trainer.Step(
      static_cast<int>(run.microbatches), [&](int i) { return model.CountOf((*parts)[i].targets); }, loss,
      stop);
}

// What every rank runs.
void TrainRank(World& world, const ImageRun& run, const ImageProgram& program, const ImageSet& train,
               const ImageSet& test) {
  const std::unique_ptr<SegmentedModule> model = program.make_model(train, NumClasses(train));
  const IntrusivePtr<MeshContext> context = Bind(world, run.mesh);
  context->state().set_seed(run.seed);
  Parallelize(*model, context, run.plan);
  std::optional<CheckpointManager> checkpoints;
  if (run.checkpoints) {
    CheckpointOptions options = *run.checkpoints;
    options.on_saved = options.on_snapshot = [&world](int64_t) { NoteSave(world); };
    checkpoints.emplace(world, options);
  }
  State state;
  const bool speaks = world.rank() == 0;
  if (run.print_model) return PrintModel(*model, MakeParts(context, run, train, /*step=*/1)[0], speaks);
  std::optional<PipelineExecutor> pipeline;
  if (run.schedule) pipeline.emplace(*model, *run.schedule);
  PipelineExecutor* const stages = pipeline ? &*pipeline : nullptr;
  int64_t evaluated = 0;
  const auto evaluate = [&](int64_t step) {
    const double accuracy = Accuracy(*model, stages, test, BatchAxes(run.mesh));
    if (speaks) PrintAccuracy(run, step, accuracy);
    evaluated = step;
  };
  bool stopped = false;
  const auto on_step_end = [&](Trainer& trainer, int64_t step) {
    // A loss that is not finite is not saved.
    if (checkpoints && (checkpoints->IsDue(step) || checkpoints->IsSnapshotDue(step))) trainer.Flush();
    if (checkpoints) checkpoints->AfterStep(step, state);
    if (!Evaluates(run, step) || step == run.steps) return;
    trainer.Flush();  // so that the step's own line comes first
    if (!stopped) evaluate(step);
  };
  const auto on_metrics = [&](Trainer& trainer, const StepMetrics& metrics) {
    if (speaks) PrintStep(run, metrics);
    stopped = stopped || metrics.stop;
    if (!std::isfinite(metrics.loss)) trainer.FindNonFinite();
  };
  AdamW optimizer(model->AllParameters(), {.weight_decay = run.weight_decay});
  const WarmupCosine schedule = {
      .peak = run.lr, .floor = 0, .warmup_steps = run.steps / 20, .total_steps = run.steps};
  Trainer trainer(*model, optimizer,
                  {.schedule = schedule,
                   .check_replicas_every = run.check_replicas,
                   .callbacks = {{.on_step_end = on_step_end, .on_metrics = on_metrics}}});
  state.Add("model", MakeModelState(*model));
  state.Add("optimizer", MakeOptimizerState(optimizer));
  state.Add("run", MakeTextsState([&run] { return run.texts; }));
  if (checkpoints) ResumeRun(run, program, *checkpoints, state, trainer);
  for (int64_t step = trainer.step() + 1; step <= run.steps && !stopped; ++step) {
    TrainStep(run, MakeParts(model->context(), run, train, step), *model, stages, trainer);
  }
  trainer.Flush();
  if (checkpoints) {
    checkpoints->Save(trainer.step(), state);
    checkpoints->Wait();
  }
  // The last step once it is saved: whoever has sent a signal may not wait for an evaluation.
  if (Evaluates(run, trainer.step()) && trainer.step() != evaluated) evaluate(trainer.step());
}

int Train(const ImageProgram& program, const ParsedFlags& parsed) {
  const std::optional<SavedStep> resumed = TakeOverFlags(program, parsed);
  ImageRun run = RunFromFlags(program);
  run.resumed = resumed;
  run.parsed = parsed;
  const std::string given = absl::GetFlag(FLAGS_data);
  run.data = given.empty() ? DefaultImagesPath() : UserPath(given);
  const ImageSet train = ReadImageSet(run.data, "train");
  const ImageSet test = ReadImageSet(run.data, "t10k");
  WEFT_REQUIRE(train.rows == test.rows && train.columns == test.columns, "'", run.data,
               "': expected training and test images of one size");
  run.texts["weft.images"] = absl::StrCat(Fingerprint(train), ", ", Fingerprint(test));
  if (resumed) RequireSameImages(resumed->texts, run);
  CatchStopSignals();
  RunWorld(static_cast<int>(run.mesh.num_ranks()),
           [&](World& world) { TrainRank(world, run, program, train, test); });
  return StopSignal() == 0 ? 0 : 128 + StopSignal();
}

}  // namespace

Plan ImagePlan(const DeviceMesh& mesh, const std::string& data_plan, const ImageProgram& program,
               const std::optional<PipelineSchedule>& schedule) {
  WEFT_REQUIRE(data_plan == "ddp" || data_plan == "fsdp", "--plan=", data_plan, ": expected ddp or fsdp");
  std::vector<PlanEntry> entries;
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const std::string name(mesh.axis_name(axis));
    WEFT_REQUIRE(name == "pp" || name == "dp" || name == "tp", "--mesh: expected axes pp, dp and tp, got '",
                 name, "'");
  }
  WEFT_REQUIRE(mesh.FindAxis("dp") >= 0 || data_plan == "ddp", "plan ", data_plan,
               " needs an axis 'dp'; the mesh is '", mesh.ToString(), "'");
  if (mesh.FindAxis("tp") >= 0) entries = program.tensor_plan("tp");
  if (schedule) {
    const int chunks = schedule->num_chunks();
    const bool is_loop = schedule->stage_rank == StageRanks(StageOrder::kLoop, schedule->num_ranks(), chunks);
    entries.push_back({"blocks.*", Pipeline("pp", {.chunks = chunks,
                                                   .order = is_loop ? StageOrder::kLoop : StageOrder::kV})});
  }
  if (mesh.FindAxis("dp") >= 0 && data_plan == "ddp") entries.push_back({"", DataParallel("dp")});
  if (mesh.FindAxis("dp") >= 0 && data_plan == "fsdp") {
    entries.push_back({"blocks.*", FullyShard("dp")});
    entries.push_back({"", FullyShard("dp")});
  }
  return Plan(entries);
}

int RunImageProgram(int argc, char** argv, const ImageProgram& program) {
  return RunMain(argc, argv, Usage(program),
                 [&](const ParsedFlags& parsed) { return Train(program, parsed); });
}

}  // namespace weft
