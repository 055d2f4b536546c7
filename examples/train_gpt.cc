// Trains a byte-level GPT on real text over a mesh of ranks, then lets it write.
//
//   bazel run //examples:train_gpt                               2 x 2 threads, data x tensor parallel
//   bazel run //examples:train_gpt -- --mesh=dp=4 --plan=fsdp    fully sharded over four
//   bazel run //examples:train_gpt -- --mesh=pp=2,dp=2 --microbatches=4    two stages of two ranks each
//   bazel run //examples:train_gpt -- --mesh= --steps=100        a single rank
//   weft_run --nproc-per-node=4 bazel-bin/examples/train_gpt     the first again, with ranks as processes
//
// The model (dtensor/nn/gpt.h) is a single-device program; the plan that spreads it is data
// (examples/gpt/gpt_plan.h). Prints the plan, a progress line with loss and tokens/s, validation losses, and at
// the end a sample of generated text.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/optim/loss_scale.h"
#include "examples/checkpoint_flags.h"
#include "examples/flag_checks.h"
#include "examples/gpt/gpt_checkpoint.h"
#include "examples/gpt/gpt_data.h"
#include "examples/gpt/gpt_flags.h"
#include "examples/gpt/gpt_optimizer.h"
#include "examples/gpt/gpt_progress.h"
#include "examples/gpt/gpt_saving.h"
#include "examples/gpt/gpt_text.h"
#include "examples/stop_signal.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/lowering.h"
#include "parallel/pipeline/segment_costs.h"
#include "parallel/trainer.h"
#include "runtime/base/config_file.h"
#include "runtime/base/philox.h"
#include "runtime/data/token_file.h"
#include "runtime/data/utf8.h"
#include "runtime/launch/clock_offset.h"
#include "runtime/launch/run_within_memory.h"
#include "runtime/launch/run_world.h"
#include "runtime/trace/span.h"

namespace weft {
namespace {

// What the ranks share: the text, and the checkpoint to go on from, if any.
struct Inputs {
  GptText text;
  std::vector<int32_t> tokens;
  TokenSplit split;
  std::vector<int32_t> prompt;  // of the sample at the end
  std::optional<GptCheckpointInfo> resumed;
  uint64_t fingerprint = 0;
  GptCheckpointInfo info;                        // of this run
  std::optional<CheckpointOptions> checkpoints;  // if it has a folder for them
};

int64_t CountParameters(Gpt& model) {
  int64_t count = 0;
  for (const Parameter* parameter : model.AllParameters()) count += parameter->spec().shape.num_elements();
  return count;
}

// One step, of one batch or of its parts. `pipeline`: runs the model, if that is cut into stages.
void TrainStep(World& world, const GptRun& run, GptData& data, Gpt& model, PipelineExecutor* pipeline,
               Trainer& trainer) {
  const int microbatches = static_cast<int>(run.microbatches);
  world.flight_recorder().SetActivity("data loader");
  // The trainer keeps what it may run again.
  const auto parts = std::make_shared<std::vector<GptBatch>>(data.Next());
  trainer.NoteDataWait(data.wait_s());
  world.flight_recorder().SetActivity("training step");
  const auto count = [&](int i) { return CountTargets((*parts)[i].targets); };
  const auto loss = [&model, parts](int i) {
    const GptBatch& part = (*parts)[i];
    const BatchOffsetGuard offset(model.context()->state(), part.batch_offset);
    return model.Loss(part.tokens, part.targets);
  };
  const bool stop = StopSignal() != 0;
  if (pipeline != nullptr) {
    std::vector<Microbatch> staged;
    for (const GptBatch& part : *parts) {
      staged.push_back({.inputs = {part.tokens}, .targets = part.targets, .batch_offset = part.batch_offset});
    }
    trainer.Step(*pipeline, std::move(staged), stop);
  } else if (microbatches == 1) {
    trainer.Step(
        run.batch * run.model.context, [loss] { return loss(0).Mean(); }, stop);
  } else {
    trainer.Step(microbatches, count, loss, stop);
  }
}

// Trains from `first_step` to the last, or until a record has set `stopped`.
void TrainSteps(World& world, const GptRun& run, GptData& data, int64_t first_step, const bool& stopped,
                Gpt& model, PipelineExecutor* pipeline, Trainer& trainer) {
  for (int64_t step = first_step; step <= run.steps && !stopped; ++step) {
    TrainStep(world, run, data, model, pipeline, trainer);
  }
  trainer.Flush();
}

// Errors: DataLoss, if the loss is not finite: what is so first. Its line has been written, and is the last.
void CheckLoss(Trainer& trainer, const StepMetrics& metrics) {
  if (std::isfinite(metrics.loss)) return;
  trainer.FindNonFinite();
  Throw(absl::StatusCode::kDataLoss, "the loss of step ", metrics.step, " is ", metrics.loss);
}

// Validation losses: every `eval_every` steps, and of the last step, whichever that is: of that once it is saved, since whoever
// has sent a signal may not wait for an evaluation.
class Evaluations {
 public:
  Evaluations(World& world, const GptRun& run, const Inputs& inputs, const Layout& layout, Gpt& model,
              PipelineExecutor* pipeline, GptProgress* progress)
      : world_(world), run_(run), layout_(layout), model_(model), pipeline_(pipeline), progress_(progress) {
    if (run.eval_every == 0 || inputs.split.validation.empty()) return;
    // More than the text has is all of it.
    int64_t samples = 0;
    if (__builtin_mul_overflow(run.eval_batches, run.asked_batch, &samples)) {
      samples = std::numeric_limits<int64_t>::max();
    }
    batches_.emplace(inputs.split.validation, run.model.context, samples);
  }

  // `stopped`: which a record sets, as in TrainSteps.
  void OnStepEnd(Trainer& trainer, int64_t step, const bool& stopped) {
    if (!batches_ || step % run_.eval_every != 0 || step == run_.steps) return;
    trainer.Flush();  // so that the step's own line comes first
    if (!stopped) Evaluate(step);
  }
  void OnLastStep(int64_t step) {
    if (batches_ && step != evaluated_) Evaluate(step);
  }

 private:
  void Evaluate(int64_t step) {
    world_.flight_recorder().SetActivity("evaluation");
    const double val_loss = weft::Evaluate(model_, *batches_, layout_, run_.batch, pipeline_);
    if (progress_ != nullptr) progress_->Evaluation(step, val_loss);
    evaluated_ = step;
  }

  World& world_;
  const GptRun& run_;
  const Layout layout_;
  Gpt& model_;
  PipelineExecutor* pipeline_;
  GptProgress* progress_;
  std::optional<EvalBatches> batches_;
  int64_t evaluated_ = 0;
};

// A new line; of a text without one, which a vocabulary of its characters lacks, the token that it begins with.
std::vector<int32_t> PromptOf(const GptText& text, const std::vector<int32_t>& tokens) {
  if (text.text.find('\n') == std::string::npos) return {tokens.front()};
  return text.tokenizer->Encode("\n");
}

// What is saved of the run besides tensors, and its command line.
GptCheckpointInfo InfoOf(const GptRun& run, const Inputs& inputs, const ParsedFlags& parsed) {
  GptCheckpointInfo info = {.tokenizer = inputs.text.tokenizer->ToJson(),
                            .text_fingerprint = inputs.fingerprint,
                            .model = run.model,
                            .dtype = run.dtype,
                            .flags = ResumableFlags(run.loss_scale.has_value()),
                            .parsed = parsed,
                            .config = EffectiveConfig(TrainGptUsage())};
  info.flags["context"] = absl::StrCat(run.model.context);  // the flag may be 0, which stands for it
  return info;
}

// The run's plan, with stages by what their segments are measured to take, if the flags say so.
Plan PlanOf(World& world, const GptRun& run, Gpt& model, GptProgress* progress) {
  if (!run.measures_segments) return run.plan;
  const Layout layout = BatchLayout(run.mesh, run.plan);
  // Of the largest microbatch, as a rank of a stage gets them.
  int64_t rows = (run.batch + run.microbatches - 1) / run.microbatches;
  for (int axis = 0; axis < run.mesh.num_axes(); ++axis) {
    const int64_t parts = layout.IsShard(axis) ? run.mesh.axis_size(axis) : 1;
    rows = (rows + parts - 1) / parts;
  }
  const auto make = [&](const IntrusivePtr<MeshContext>& context) -> Microbatch {
    std::vector<int32_t> numbers(rows * run.model.context);
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<int32_t>(i * 31 % run.model.vocabulary);
    }
    const DTensor tokens = DTensor::Distribute(
        context, Tensor::FromValues<int32_t>({rows, run.model.context}, numbers), Layout(2, 0));
    return {.inputs = {tokens}, .targets = tokens};
  };
  const std::vector<double> costs = MeasureSegmentCosts(
      model, world, run.mesh, make, {.dtype = run.dtype, .compute_dtype = run.compute_dtype});
  if (progress != nullptr) progress->SegmentCosts(costs);
  return WithSegmentCosts(run.plan, costs);
}

// What every rank runs. Nothing below depends on how many ranks there are.
void TrainRank(World& world, const GptRun& run, const Inputs& inputs) {
  std::optional<GptProgress> progress;
  if (world.rank() == 0) progress.emplace(run);

  Gpt model(run.model);
  const Plan plan = PlanOf(world, run, model, progress ? &*progress : nullptr);
  if (progress) {
    const ResolvedPlan resolved = ResolvePlan(model, run.mesh, plan);
    progress->Header(CountParameters(model), inputs.text.path, static_cast<int64_t>(inputs.tokens.size()),
                     resolved.ToTable(model, run.mesh));
  }
  if (run.print_plan) return;
  GptSaving saving(world, run.mesh.num_ranks(), inputs.checkpoints, inputs.info, inputs.resumed, run.save,
                   run.resume);
  const IntrusivePtr<MeshContext> context = Bind(world, run.mesh);
  context->state().set_seed(run.seed);
  Parallelize(model, context, plan, {.dtype = run.dtype, .compute_dtype = run.compute_dtype});

  const Layout layout = BatchLayout(run.mesh, plan);
  std::optional<PipelineExecutor> executor;
  if (run.pipeline_schedule) executor.emplace(model, *run.pipeline_schedule);
  PipelineExecutor* const pipeline = executor ? &*executor : nullptr;
  Evaluations evaluations(world, run, inputs, layout, model, pipeline, progress ? &*progress : nullptr);
  bool stopped = false;
  const auto on_metrics = [&](Trainer& trainer, const StepMetrics& metrics) {
    if (progress) progress->Step(metrics);
    stopped = stopped || metrics.stop;
    CheckLoss(trainer, metrics);
  };
  const auto on_step_end = [&](Trainer& trainer, int64_t step) {
    saving.OnStepEnd(trainer, step);
    evaluations.OnStepEnd(trainer, step, stopped);
  };
  const std::unique_ptr<Optimizer> made = MakeGptOptimizer(run, model.AllParameters());
  Optimizer& optimizer = *made;
  std::optional<LossScale> loss_scale;
  if (run.loss_scale) loss_scale.emplace(model.context(), *run.loss_scale);
  LossScale* const scale = loss_scale ? &*loss_scale : nullptr;
  Trainer trainer(model, optimizer,
                  {.schedule = MakeGptSchedule(run),
                   .grad_clip = run.grad_clip,
                   .loss_scale = scale,
                   .check_replicas_every = run.check_replicas,
                   .callbacks = {{.on_step_end = on_step_end, .on_metrics = on_metrics}}});
  GptData data(run, inputs.split.train, inputs.text.path, model.context(), layout);
  saving.Resume({.model = model, .optimizer = optimizer, .loss_scale = scale}, data, trainer);
  TrainSteps(world, run, data, trainer.step() + 1, stopped, model, pipeline, trainer);
  saving.OnLastStep(trainer);
  evaluations.OnLastStep(trainer.step());
  if (run.sample == 0 || stopped) return;
  const std::vector<int32_t> sample =
      SampleGpt(model, layout, inputs.prompt, inputs.text.tokenizer->vocab_size(),
                {.num_tokens = run.sample, .seed = run.seed}, pipeline);
  if (progress) progress->Sample(PrintableText(inputs.text.tokenizer->Decode(sample)));
}

int Train(const ParsedFlags& parsed) {
  Inputs inputs;
  inputs.resumed = ResumeFromFlags(parsed);
  inputs.text = ReadGptText();
  inputs.fingerprint = StreamOf(inputs.text.text);
  const GptRun run = GptRunFromFlags(inputs.text.tokenizer->vocab_size());
  if (run.print_schedule) {
    const PipelineSchedule& schedule = *run.pipeline_schedule;
    const PipelineSchedule lowered = schedule.lowered() ? schedule : LowerSchedule(schedule);
    std::printf("%s", lowered.ToString().c_str());
    return 0;
  }
  if (inputs.resumed) {
    WEFT_REQUIRE(inputs.resumed->text_fingerprint == inputs.fingerprint, inputs.resumed->source,
                 ": it was trained on another text than '", inputs.text.path, "'");
  }
  if (!run.save.empty()) CheckCanReplace("save", run.save);
  if (!run.trace.empty()) CheckCanWrite("trace", run.trace);
  inputs.tokens = inputs.text.tokenizer->Encode(inputs.text.text);
  // Flags are read here, before there are ranks.
  inputs.info = InfoOf(run, inputs, parsed);
  inputs.checkpoints = CheckpointOptionsFromFlags();
  if (!run.save.empty() || inputs.checkpoints) CheckCanSave(inputs.info);
  inputs.split = SplitTokens(inputs.tokens, run.val_fraction, run.model.context);
  inputs.prompt = PromptOf(inputs.text, inputs.tokens);
  CatchStopSignals();
  std::optional<Tracer> tracer;
  if (!run.trace.empty()) tracer.emplace();
  std::string trace = run.trace;
  std::atomic<bool> has_trained = false;  // a spare has not: the trace is that of rank 0 there
  MemorySavings savings = {.names = {}, .allow_spares = run.allow_spares, .before_again = [&] {
                             inputs.resumed = ResumeFromFlags(parsed);  // what was saved meanwhile
                           }};
  for (const NamedPlan& plan : run.plans) savings.names.push_back(plan.name);
  RunWithinMemory(static_cast<int>(run.mesh.num_ranks()), savings,
                  [&](World& world, int saving) {
                    has_trained = true;
                    // A process writes its own rank's spans.
                    if (RanksAreProcesses(run.backend) && world.rank() > 0)
                      absl::StrAppend(&trace, ".", world.rank());
                    if (RanksAreProcesses(run.backend) && tracer && world.size() > 1)
                      NoteClockOffset(world, static_cast<int>(run.mesh.num_ranks()), *tracer);
                    GptRun own = run;
                    own.plan = run.plans[saving].plan;
                    TrainRank(world, own, inputs);
                  },
                  {.backend = run.backend,
                   .device = run.device,
                   .device_options = run.device_options,
                   .threads_per_rank = run.threads_per_rank,
                   .tracer = tracer ? &*tracer : nullptr,
                   .check_issue_order = run.check_issue_order,
                   .deterministic = run.deterministic});
  if (tracer && has_trained) tracer->WriteChromeTrace(trace);
  return StopSignal() == 0 ? 0 : 128 + StopSignal();
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::TrainGptUsage(), weft::Train); }
