#include "examples/gpt/gpt_flags.h"

#include <limits>
#include <memory>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "examples/checkpoint_flags.h"
#include "examples/flag_checks.h"
#include "examples/gpt/flag_uses.h"
#include "examples/gpt/gpt_deepspeed.h"
#include "examples/gpt/gpt_plan_flags.h"
#include "examples/gpt/rate_floor.h"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/data/default_text.h"
#include "runtime/data/token_file.h"
#include "runtime/device/device_backend.h"
#include "runtime/launch/run_world.h"

ABSL_FLAG(int64_t, microbatches, 1,
          "parts that a step's batch comes in, of as many rows or of one more, whose gradients add up; "
          "--batch_ranks keeps a multiple, where --batch is one");
ABSL_FLAG(bool, print_schedule, false, "print what each rank of the pipeline does in a step and stop");
ABSL_FLAG(std::string, offload_folder, "",
          "of --offload, or a plan's, on the CPU: where the file is; empty: TMPDIR, or /tmp");
ABSL_FLAG(std::string, backend, "auto",
          "how ranks run and talk: local (threads of this process), gloo or mpi (processes, one per rank, "
          "that a launcher has started), nccl (a GPU for each rank), auto (whichever this was started as)");
ABSL_FLAG(std::string, device, "auto",
          "where tensors lie: cpu, cuda (a GPU; build with --config=cuda), auto (cuda where there is one)");
ABSL_FLAG(bool, tf32, false,
          "on a GPU, products of f32 may round their operands to 11 significant bits, for its tensor cores");
ABSL_FLAG(double, memory_gb, 0,
          "GB that the tensors of a rank take at most; 0: what the device has, and on a CPU no limit");
ABSL_FLAG(std::string, threads, "auto", "threads of each rank; auto: cores divided by ranks");
ABSL_FLAG(std::string, model, "", "a preset instead of layers, heads, dim: gpt2-124M");
ABSL_FLAG(int64_t, layers, 4, "transformer blocks");
ABSL_FLAG(int64_t, heads, 4, "attention heads of a block");
ABSL_FLAG(int64_t, dim, 128, "width of the model");
ABSL_FLAG(int64_t, vocab_size, 0, "rows of the embedding; 0: the tokenizer's vocabulary");
ABSL_FLAG(int64_t, context, 0, "tokens of a sequence; 0: 64, or the preset's");
ABSL_FLAG(int64_t, batch, 12, "sequences of a step, over all ranks");
ABSL_FLAG(int64_t, steps, 2000, "steps to train");
ABSL_FLAG(double, lr, 1e-3, "largest learning rate");
ABSL_FLAG(
    double, min_lr, -1,
    "learning rate at the end; below 0: --min_lr_ratio says, or it is 1e-4, and at most a tenth of --lr; not "
    "with --schedule_lr=constant");
ABSL_FLAG(
    double, min_lr_ratio, -1,
    "learning rate at the end as a share of --lr, where --min_lr does not say it; below 0: none; not with "
    "--schedule_lr=constant");
ABSL_FLAG(int64_t, warmup, 100, "steps in which the learning rate grows");
ABSL_FLAG(
    std::string, warmup_shape, "linear",
    "how it grows in them: linear, or log (fast at first, as DeepSpeed's does unless it is told otherwise)");
ABSL_FLAG(
    std::string, schedule_lr, "cosine",
    "how the learning rate falls after its warm-up: cosine, linear, wsd (in the last fifth of the steps), "
    "one_cycle (also grows as a cosine), warm_restarts (four cosines), or constant (does not)");
ABSL_FLAG(std::string, optimizer, "adamw",
          "adamw, sgd (with a momentum, beta1), lion, adafactor, muon (of the blocks' matrices; adamw of "
          "the others), lamb, adamw8bit (moments in 8 bits)");
ABSL_FLAG(bool, nesterov, true, "sgd's momentum is Nesterov's; false: plain");
ABSL_FLAG(double, weight_decay, 0.1,
          "the optimizer's decay of matrices and embeddings, per step and unit of learning rate");
ABSL_FLAG(double, beta1, 0.9,
          "the optimizer's decay of the first moment; sgd's momentum; of muon its adamw's; not of adafactor");
ABSL_FLAG(double, beta2, 0.99,
          "the optimizer's decay of the second moment; lion's of its momentum; of muon its adamw's; not of "
          "sgd and adafactor");
ABSL_FLAG(
    double, eps, 0,
    "what adamw, muon's adamw, adamw8bit and lamb add to the root of the second moment; 0: 1e-8, lamb 1e-6");
ABSL_FLAG(double, grad_clip, 1.0, "largest norm of the gradient; 0: not clipped");
ABSL_FLAG(double, dropout, 0.0, "probability that an activation is zeroed in training");
ABSL_FLAG(uint64_t, seed, 1337, "of initial values, batches, dropout and samples");
ABSL_FLAG(
    std::string, dtype, "f32",
    "element type: f32, f64, or bf16 or f16 (arithmetic in it; parameters, reductions and optimizer state "
    "in f32; under f16 the loss is scaled)");
ABSL_FLAG(double, loss_scale, 65536, "of --dtype=f16, at the start: it grows and shrinks by itself");
ABSL_FLAG(int64_t, loss_scale_window, 2000,
          "updates in a row without overflow after which the loss scale grows; 0: it stays --loss_scale");
ABSL_FLAG(int64_t, loss_scale_hysteresis, 1,
          "overflows until the loss scale shrinks, since it grew last; not with --loss_scale_window=0");
ABSL_FLAG(double, min_loss_scale, 0,
          "which the loss scale does not shrink below; not with --loss_scale_window=0");
ABSL_FLAG(std::string, data, "", "text to train on; empty: the Jargon File that setup.sh fetches");
ABSL_FLAG(std::string, tokenizer, "bytes", "tokens are bytes or chars (code points)");
ABSL_FLAG(
    std::string, shuffle, "none",
    "none (windows of the text are drawn with replacement) or epoch (each window of the text comes once per "
    "epoch, in a random order)");
ABSL_FLAG(int64_t, data_threads, 1, "threads of each rank that read batches ahead; 0: none");
ABSL_FLAG(double, val_fraction, 0.1, "share of the text, its tail, kept for validation");
ABSL_FLAG(int64_t, eval_every, 250, "steps between evaluations; 0: none");
ABSL_FLAG(int64_t, eval_batches, 20, "batches of an evaluation");
ABSL_FLAG(int64_t, sample, 500, "tokens to generate at the end; 0: none");
ABSL_FLAG(int64_t, log_every, 10, "steps between progress lines");
ABSL_FLAG(std::string, log_format, "text", "text, or json: one object a line on stdout");
ABSL_FLAG(std::string, save, "",
          "file to save model, optimizer and position to, at the end and on SIGINT or SIGTERM");
ABSL_FLAG(std::string, resume, "",
          "file that --save wrote, to go on from; its flags hold unless given again: of another --batch "
          "--batch_policy=keep keeps the learning rate");
ABSL_FLAG(std::string, trace, "", "file for a Chrome trace of every op and collective");
ABSL_FLAG(bool, check_issue_order, false,
          "for debugging: after each step, compare in which order the ranks have issued their collectives");
ABSL_FLAG(int64_t, check_replicas, 0,
          "for debugging: every so many steps compare what ranks hold alike, bit by bit; 0: never");
ABSL_FLAG(bool, deterministic, false,
          "refuse what does not give the same bits in every run: NCCL's own choice of how it sums, "
          "--segment_costs=measured");
ABSL_FLAG(bool, print_plan, false, "print the plan as a table and stop");

namespace weft {
namespace {

GptConfig ModelFromFlags(int64_t tokenizer_vocabulary) {
  GptConfig config;
  const std::string preset = absl::GetFlag(FLAGS_model);
  const int64_t vocabulary = AtLeast(0, "vocab_size", absl::GetFlag(FLAGS_vocab_size));
  const int64_t context = AtLeast(0, "context", absl::GetFlag(FLAGS_context));
  if (!preset.empty()) {
    WEFT_REQUIRE(preset == "gpt2-124M", "--model=", preset, ": expected gpt2-124M, or nothing");
    for (const char* flag : {"layers", "heads", "dim"}) {
      WEFT_REQUIRE(!IsGiven(flag), "--", flag, "=", absl::FindCommandLineFlag(flag)->CurrentValue(),
                   ": the preset says so itself (--model=", preset, ")");
    }
    config = GptConfig::Gpt2_124M();
  } else {
    config.layers = AtLeast(1, "layers", absl::GetFlag(FLAGS_layers));
    config.heads = AtLeast(1, "heads", absl::GetFlag(FLAGS_heads));
    config.dim = AtLeast(1, "dim", absl::GetFlag(FLAGS_dim));
    WEFT_REQUIRE(config.dim % config.heads == 0, "--heads=", config.heads,
                 ": expected a divisor of --dim=", config.dim);
    config.vocabulary = tokenizer_vocabulary;
  }
  if (context > 0) config.context = context;
  if (vocabulary > 0) config.vocabulary = vocabulary;
  WEFT_REQUIRE(config.vocabulary >= tokenizer_vocabulary, "--vocab_size=", config.vocabulary,
               ": expected at least the tokenizer's ", tokenizer_vocabulary);
  config.dropout = InRange(0, 1, "dropout", absl::GetFlag(FLAGS_dropout));
  return config;
}

int ThreadsFromFlags() {
  const std::string threads = absl::GetFlag(FLAGS_threads);
  int count = 0;
  if (threads == "auto") return 0;
  WEFT_REQUIRE(absl::SimpleAtoi(threads, &count) && count >= 1, "--threads=", threads,
               ": expected auto or a whole number of 1 or more");
  return count;
}

// Of f16 alone, whether it is the run's or that of some modules of the plan.
std::optional<LossScaleOptions> LossScaleFromFlags(DType compute_dtype, const Plan& plan) {
  const double loss_scale = absl::GetFlag(FLAGS_loss_scale), least = absl::GetFlag(FLAGS_min_loss_scale);
  const int64_t hysteresis = AtLeast(1, "loss_scale_hysteresis", absl::GetFlag(FLAGS_loss_scale_hysteresis));
  const int64_t window = AtLeast(0, "loss_scale_window", absl::GetFlag(FLAGS_loss_scale_window));
  WEFT_REQUIRE(loss_scale > 0 && loss_scale <= std::numeric_limits<float>::max(), "--loss_scale=", loss_scale,
               ": expected a number above 0 that f32 holds");
  WEFT_REQUIRE(least >= 0 && least <= loss_scale, "--min_loss_scale=", least,
               ": expected a number from 0 to --loss_scale=", loss_scale);
  WEFT_REQUIRE(hysteresis <= 1000, "--loss_scale_hysteresis=", hysteresis, ": expected 1 to 1000");
  for (const char* flag : {"loss_scale_hysteresis", "min_loss_scale"}) {
    WEFT_REQUIRE(window > 0 || !IsGiven(flag), "--", flag, "=",
                 absl::FindCommandLineFlag(flag)->CurrentValue(),
                 ": expected a scale that changes, got --loss_scale_window=0");
  }
  if (compute_dtype == DType::kF16 || plan.UsesDType(DType::kF16)) {
    return LossScaleOptions{
        .initial = loss_scale, .interval = window, .min = least, .hysteresis = static_cast<int>(hysteresis)};
  }
  for (const char* flag : {"loss_scale", "loss_scale_window", "loss_scale_hysteresis", "min_loss_scale"}) {
    WEFT_REQUIRE(
        !IsGiven(flag), "--", flag, "=", absl::FindCommandLineFlag(flag)->CurrentValue(),
        ": it is of --dtype=f16 and of plans that compute in f16, got --dtype=", DTypeName(compute_dtype));
  }
  return std::nullopt;
}

void OptimizerFromFlags(GptRun& run) {
  run.optimizer = absl::GetFlag(FLAGS_optimizer);
  run.adamw = {.beta1 = InRange(0, 1, "beta1", absl::GetFlag(FLAGS_beta1)),
               .beta2 = InRange(0, 1, "beta2", absl::GetFlag(FLAGS_beta2)),
               .weight_decay = InRange(0, 1e9, "weight_decay", absl::GetFlag(FLAGS_weight_decay))};
  const std::string& name = run.optimizer;
  WEFT_REQUIRE(!IsGiven("beta1") || HasBeta1(name), "--beta1=", run.adamw.beta1,
               ": expected --optimizer=adamw, sgd, lion, muon, lamb or adamw8bit, got ", name);
  WEFT_REQUIRE(!IsGiven("beta2") || HasBeta2(name), "--beta2=", run.adamw.beta2,
               ": expected --optimizer=adamw, lion, muon, lamb or adamw8bit, got ", name);
  run.nesterov = absl::GetFlag(FLAGS_nesterov);
  WEFT_REQUIRE(run.nesterov || run.optimizer == "sgd", "--nesterov=false: expected --optimizer=sgd, got ",
               run.optimizer);
  run.eps = InRange(0, 1, "eps", absl::GetFlag(FLAGS_eps));
  if (run.eps == 0) return;
  WEFT_REQUIRE(HasEps(name), "--eps=", run.eps, ": expected --optimizer=adamw, muon, adamw8bit or lamb, got ",
               name);
  run.adamw.eps = run.eps;
}

double FloorOfRate() {
  const double peak = absl::GetFlag(FLAGS_lr);
  const double floor = InRange(-1, 1e9, "min_lr", absl::GetFlag(FLAGS_min_lr));
  if (floor >= 0) return floor;
  const double ratio = absl::GetFlag(FLAGS_min_lr_ratio);
  WEFT_REQUIRE(ratio >= -1 && ratio <= 1, "--min_lr_ratio=", ratio, ": expected a number from -1 to 1");
  return ratio >= 0 ? ratio * peak : RateFloor(peak);
}

// `scale`: of what the flags say.
void RatesFromFlags(GptRun& run, double scale) {
  run.schedule_lr = absl::GetFlag(FLAGS_schedule_lr);
  run.schedule = {.peak = scale * InRange(0, 1e9, "lr", absl::GetFlag(FLAGS_lr)),
                  .floor = scale * FloorOfRate(),
                  .warmup_steps = AtLeast(0, "warmup", absl::GetFlag(FLAGS_warmup)),
                  .total_steps = run.steps};
  if (absl::GetFlag(FLAGS_warmup_shape) == "log") run.schedule.warmup = WarmupShape::kLog;
  WEFT_REQUIRE(run.schedule_lr != "one_cycle" || run.schedule.warmup == WarmupShape::kLinear,
               "--warmup_shape=log: expected linear with --schedule_lr=one_cycle, which grows as a cosine");
  for (const char* flag : {"min_lr", "min_lr_ratio"}) {
    WEFT_REQUIRE(HasFloor(run.schedule_lr) || !IsGiven(flag), "--", flag, "=", FlagNamed(flag).CurrentValue(),
                 ": expected a --schedule_lr that falls, got constant");
  }
  WEFT_REQUIRE(run.schedule.floor <= run.schedule.peak, "--min_lr=", run.schedule.floor,
               ": expected at most --lr=", run.schedule.peak);
}

// A plan of one's own need not split the heads; where it does, ResolvePlan checks it.
void CheckDivisible(const GptRun& run) {
  const auto splits_heads = [](const PlanEntry& entry) {
    return entry.path == "blocks.*.attn.qkv" && entry.style == ColumnParallel("tp");
  };
  const int tp = absl::c_any_of(run.plan.entries(), splits_heads) ? run.mesh.FindAxis("tp") : -1;
  WEFT_REQUIRE(tp < 0 || run.model.heads % run.mesh.axis_size(tp) == 0, "--heads=", run.model.heads,
               ": the mesh (", run.mesh.ToString(), ") splits the heads ", run.mesh.axis_size(tp),
               " ways, which does not divide them");
}

void DataFromFlags(GptRun& run) {
  OneOf("shuffle", absl::GetFlag(FLAGS_shuffle), {"none", "epoch"});
  run.shuffle_epochs = absl::GetFlag(FLAGS_shuffle) == "epoch";
  run.data_threads = IntAtLeast(0, "data_threads", absl::GetFlag(FLAGS_data_threads));
  run.val_fraction = InRange(0, 1, "val_fraction", absl::GetFlag(FLAGS_val_fraction));
}

void DeviceFromFlags(GptRun& run) {
  run.device = ParseDevice(absl::GetFlag(FLAGS_device));
  run.device_options.cap_bytes =
      static_cast<int64_t>(1e9 * InRange(0, 1e6, "memory_gb", absl::GetFlag(FLAGS_memory_gb)));
  run.device_options.allow_tf32 = absl::GetFlag(FLAGS_tf32);
  WEFT_REQUIRE(!run.device_options.allow_tf32 || absl::GetFlag(FLAGS_device) != "cpu",
               "--tf32: expected a GPU, got --device=cpu");
  run.device_options.offload_folder = UserPath(absl::GetFlag(FLAGS_offload_folder));
}

}  // namespace

FlagsUsage TrainGptUsage() {
  return {
      .summary = "Trains a GPT on a text over a mesh of ranks, then samples from it.",
      .groups = {{"Mesh and plan",
                  {"mesh", "mesh_choices", "plan", "sequence_parallel", "reshard", "recompute", "offload",
                   "offload_folder", "communication", "bucket_mb", "prefetch", "overlap", "lane_priority",
                   "print_plan", "backend", "device", "memory_gb", "tf32", "threads"}},
                 {"Pipeline", {"schedule", "chunks", "segment_costs", "print_schedule"}},
                 {"Model",
                  {"model", "layers", "heads", "dim", "vocab_size", "context", "dropout", "dtype",
                   "loss_scale", "loss_scale_window", "loss_scale_hysteresis", "min_loss_scale"}},
                 {"Training",
                  {"batch", "microbatches", "steps", "optimizer", "lr", "min_lr", "min_lr_ratio", "warmup",
                   "warmup_shape", "schedule_lr", "weight_decay", "beta1", "beta2", "nesterov", "eps",
                   "grad_clip", "seed"}},
                 {"Data", {"data", "tokenizer", "val_fraction", "shuffle", "data_threads"}},
                 CheckpointFlags(),
                 {"Output",
                  {"eval_every", "eval_batches", "sample", "log_every", "log_format", "save", "resume",
                   "trace", "check_issue_order", "check_replicas", "deterministic"}}},
      .examples = {"train_gpt --mesh=dp=2,tp=2 --steps=500",
                   "train_gpt --mesh=dp=4 --plan=fsdp --data=book.txt --save=book.safetensors",
                   "train_gpt --mesh=dp=2 --checkpoint_dir=runs/a --save_every=100 --keep=3",
                   "train_gpt --mesh=pp=2,dp=2 --schedule=zbv --microbatches=6",
                   "train_gpt --mesh=dp=4 --config=ds_config.json"},
      .foreign = {DeepSpeedForGpt()},
  };
}

std::string ResumePath() { return UserPath(absl::GetFlag(FLAGS_resume)); }

GptText ReadGptText() {
  GptText text;
  const std::string data = absl::GetFlag(FLAGS_data);
  text.path = data.empty() ? DefaultTextPath() : UserPath(data);
  text.text = ReadTextFile(text.path);
  text.tokenizer = MakeTokenizer(absl::GetFlag(FLAGS_tokenizer), text.text);
  return text;
}

GptRun GptRunFromFlags(int64_t tokenizer_vocabulary) {
  OneOf("backend", absl::GetFlag(FLAGS_backend), {"auto", "local", "gloo", "mpi", "nccl"});
  OneOf("device", absl::GetFlag(FLAGS_device), {"auto", "cpu", "cuda"});
  OneOf("log_format", absl::GetFlag(FLAGS_log_format), {"text", "json"});
  OneOf("dtype", absl::GetFlag(FLAGS_dtype), {"f32", "f64", "bf16", "f16"});
  OneOf("optimizer", absl::GetFlag(FLAGS_optimizer),
        {"adamw", "sgd", "lion", "adafactor", "muon", "lamb", "adamw8bit"});
  OneOf("schedule_lr", absl::GetFlag(FLAGS_schedule_lr),
        {"cosine", "linear", "wsd", "one_cycle", "warm_restarts", "constant"});
  OneOf("warmup_shape", absl::GetFlag(FLAGS_warmup_shape), {"linear", "log"});
  GptRun run;
  run.backend = ParseBackend(absl::GetFlag(FLAGS_backend));
  run.mesh = MeshFromFlags(NumLaunchedRanks(run.backend));
  run.allow_spares = MeshFollowsTheWorld();
  run.model = ModelFromFlags(tokenizer_vocabulary);
  run.compute_dtype = ParseDType(absl::GetFlag(FLAGS_dtype));
  run.dtype = ItemSize(run.compute_dtype) == 2 ? DType::kF32 : run.compute_dtype;
  DeviceFromFlags(run);
  run.threads_per_rank = ThreadsFromFlags();
  run.asked_batch = AtLeast(1, "batch", absl::GetFlag(FLAGS_batch));
  run.microbatches = IntAtLeast(1, "microbatches", absl::GetFlag(FLAGS_microbatches));
  WEFT_REQUIRE(run.microbatches <= run.asked_batch, "--microbatches=", run.microbatches,
               ": expected 1 to --batch=", run.asked_batch);
  // Parts of as many rows stay so.
  const bool divides = run.asked_batch % run.microbatches == 0;
  const ScaledBatch scaled = BatchForRanks(run.asked_batch, /*multiple=*/divides ? run.microbatches : 1,
                                           run.mesh.num_ranks(), /*least=*/run.microbatches);
  run.batch = scaled.batch;
  run.pipeline_schedule = ScheduleFromFlags(run.mesh, run.microbatches);
  run.plans = PlansFromFlags(run.mesh, run.pipeline_schedule);
  run.plan = run.plans[0].plan;
  run.loss_scale = LossScaleFromFlags(run.compute_dtype, run.plan);
  run.unused_flags = UnusedFlags(run.mesh);
  run.measures_segments = run.pipeline_schedule && MeasuresSegmentCosts();
  run.steps = AtLeast(1, "steps", absl::GetFlag(FLAGS_steps));
  run.seed = absl::GetFlag(FLAGS_seed);
  DataFromFlags(run);
  run.eval_every = AtLeast(0, "eval_every", absl::GetFlag(FLAGS_eval_every));
  run.eval_batches = AtLeast(1, "eval_batches", absl::GetFlag(FLAGS_eval_batches));
  run.sample = AtLeast(0, "sample", absl::GetFlag(FLAGS_sample));
  run.log_every = AtLeast(1, "log_every", absl::GetFlag(FLAGS_log_every));
  run.json = absl::GetFlag(FLAGS_log_format) == "json";
  run.save = UserPath(absl::GetFlag(FLAGS_save));
  run.resume = ResumePath();
  run.trace = UserPath(absl::GetFlag(FLAGS_trace));
  run.check_issue_order = absl::GetFlag(FLAGS_check_issue_order);
  run.deterministic = absl::GetFlag(FLAGS_deterministic);
  WEFT_REQUIRE(!run.deterministic || !MeasuresSegmentCosts(),
               "--segment_costs=measured: times cut the model otherwise in every run, which --deterministic "
               "refuses; give the numbers that a run without it prints");
  run.check_replicas = AtLeast(0, "check_replicas", absl::GetFlag(FLAGS_check_replicas));
  run.print_plan = absl::GetFlag(FLAGS_print_plan);
  run.print_schedule = absl::GetFlag(FLAGS_print_schedule);
  RatesFromFlags(run, scaled.rate);
  OptimizerFromFlags(run);
  run.grad_clip = InRange(0, 1e9, "grad_clip", absl::GetFlag(FLAGS_grad_clip));
  CheckDivisible(run);
  return run;
}

}  // namespace weft
