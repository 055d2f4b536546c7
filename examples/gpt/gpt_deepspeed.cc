#include "examples/gpt/gpt_deepspeed.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "examples/gpt/flag_uses.h"
#include "examples/gpt/gpt_plan_flags.h"
#include "mesh/device_mesh.h"
#include "parallel/deepspeed/deepspeed_config.h"
#include "runtime/base/error.h"
#include "runtime/device/device_backend.h"
#include "runtime/launch/backend.h"
#include "runtime/launch/run_world.h"

namespace weft {
namespace {

std::string NumberText(double value) { return absl::StrFormat("%.17g", value); }

// Collects flags; what is not there is not set.
class Flags {
 public:
  void Set(const std::string& flag, const std::string& value) {
    values_.push_back({.flag = flag, .value = value});
  }
  void Set(const std::string& flag, const std::optional<double>& value) {
    if (value) Set(flag, NumberText(*value));
  }
  void Set(const std::string& flag, const std::optional<int64_t>& value) {
    if (value) Set(flag, absl::StrCat(*value));
  }
  // What DeepSpeed does where the file says nothing.
  void SetDefault(const std::string& flag, const std::string& value) {
    values_.push_back({.flag = flag, .value = value, .is_default = true});
  }
  const std::vector<FlagValue>& values() const { return values_; }

 private:
  std::vector<FlagValue> values_;
};

// Ranks that have rows of their own.
int64_t DataParallelRanks(const DeviceMesh& mesh) {
  int64_t ranks = 1;
  for (const char* name : {"dp", "replica", "shard"}) {
    const int axis = mesh.FindAxis(name);
    if (axis >= 0) ranks *= mesh.axis_size(axis);
  }
  return ranks;
}

void Precision(const DeepSpeedConfig& config, Flags& flags) {
  if (config.bf16.value_or(false)) flags.Set("dtype", "bf16");
  if (!config.fp16 || !config.fp16->enabled.value_or(false)) return;
  const DeepSpeedFp16& fp16 = *config.fp16;
  flags.Set("dtype", "f16");
  if (fp16.loss_scale.value_or(0) > 0) {
    // What the file says of a dynamic one is not asked for, there neither.
    flags.Set("loss_scale", fp16.loss_scale);
    flags.Set("loss_scale_window", std::string("0"));
    return;
  }
  // DeepSpeed's defaults.
  flags.Set("loss_scale_window", std::optional(fp16.loss_scale_window.value_or(1000)));
  flags.Set("loss_scale_hysteresis", std::optional(fp16.hysteresis.value_or(2)));
  flags.Set("min_loss_scale", std::optional(fp16.min_loss_scale.value_or(1)));
  if (fp16.initial_scale_power) {
    flags.Set("loss_scale", NumberText(std::ldexp(1.0, static_cast<int>(*fp16.initial_scale_power))));
  }
}

void Zero(const DeepSpeedZero& zero, const DeviceMesh& mesh, DeviceType device, Flags& flags) {
  const bool hybrid = mesh.FindAxis("replica") >= 0 && mesh.FindAxis("shard") >= 0;
  if (zero.stage) {
    const char* const plans[] = {"ddp", "zero1", "zero2", "fsdp"};
    WEFT_REQUIRE(!hybrid || *zero.stage == 3,
                 "key \"zero_optimization.stage\": expected 3 on a mesh with axes "
                 "replica and shard, got ",
                 *zero.stage);
    flags.Set("plan", std::string(hybrid ? "hsdp" : plans[*zero.stage]));
  }
  if (zero.overlap_comm) flags.Set("overlap", std::string(*zero.overlap_comm ? "true" : "false"));
  if (zero.reduce_bucket_size) {
    // Elements of f32, in which gradients are reduced.
    flags.Set("bucket_mb", NumberText(static_cast<double>(*zero.reduce_bucket_size) * 4 / (1 << 20)));
  }
  std::vector<std::string> what;
  if (zero.offload_optimizer.device != "none") what.push_back("state");
  if (zero.offload_param.device != "none") what.push_back("parameters");
  if (!what.empty()) flags.Set("offload", absl::StrJoin(what, ","));
  for (const DeepSpeedOffload* offload : {&zero.offload_optimizer, &zero.offload_param}) {
    WEFT_REQUIRE(offload->device != "nvme" || device == DeviceType::kCpu, "key \"zero_optimization.",
                 offload == &zero.offload_param ? "offload_param" : "offload_optimizer",
                 ".device\": expected none or cpu on a GPU, got nvme");
    if (offload->device == "nvme" && offload->nvme_path) flags.Set("offload_folder", *offload->nvme_path);
  }
}

// DeepSpeed's own: FusedAdam and FusedLion; torch's SGD.
struct OptimizerDefaults {
  const char* name;
  double lr, beta1, beta2;
};

OptimizerDefaults DefaultsOf(const std::string& type) {
  if (type == "Lion") return {"lion", 1e-3, 0.9, 0.999};
  if (type == "SGD") return {"sgd", 1e-3, 0, 0.999};
  return {"adamw", 1e-3, 0.9, 0.999};
}

// Returns the learning rate; nothing for "auto".
std::optional<double> Optimizer(const DeepSpeedOptimizer& optimizer, Flags& flags) {
  const OptimizerDefaults defaults = DefaultsOf(optimizer.type);
  const auto is_auto = [&](absl::string_view param) {
    for (const std::string& name : optimizer.auto_params) {
      if (name == param) return true;
    }
    return false;
  };
  flags.Set("optimizer", std::string(defaults.name));
  flags.Set("eps", optimizer.eps);
  if (optimizer.type == "SGD") {
    if (!is_auto("momentum")) flags.Set("beta1", std::optional(optimizer.momentum.value_or(0)));
    if (!is_auto("nesterov"))
      flags.Set("nesterov", std::string(optimizer.nesterov.value_or(false) ? "true" : "false"));
  } else if (!is_auto("betas")) {
    flags.Set("beta1", std::optional(optimizer.betas ? (*optimizer.betas)[0] : defaults.beta1));
    flags.Set("beta2", std::optional(optimizer.betas ? (*optimizer.betas)[1] : defaults.beta2));
  }
  if (!is_auto("weight_decay")) flags.Set("weight_decay", std::optional(optimizer.weight_decay.value_or(0)));
  if (is_auto("lr")) return std::nullopt;
  return optimizer.lr.value_or(defaults.lr);
}

// `lr`: the optimizer's; nothing for "auto". A rate that the file does not say is not set: a run that goes on has one.
void Scheduler(const DeepSpeedScheduler& scheduler, const std::optional<double>& lr, Flags& flags) {
  flags.Set("lr", scheduler.warmup_max_lr ? scheduler.warmup_max_lr : lr);
  if (!scheduler.auto_warmup) flags.Set("warmup", std::optional(scheduler.warmup_num_steps.value_or(1000)));
  if (scheduler.warmup_type) flags.Set("warmup_shape", *scheduler.warmup_type);
  flags.Set("steps", scheduler.total_num_steps);
  // No floor that is a copy of the peak: the peak may be another flag's.
  if (scheduler.type == "WarmupLR") return flags.Set("schedule_lr", std::string("constant"));
  const bool decays = scheduler.type == "WarmupDecayLR";
  flags.Set("schedule_lr", std::string(decays ? "linear" : "cosine"));
  if (decays) return flags.Set("min_lr", std::optional(0.0));
  flags.Set("min_lr_ratio", std::optional(scheduler.cos_min_ratio.value_or(1e-4)));
}

// Flags of a file that mean something beside some values of another alone.
struct Dependence {
  const char* on;
  bool (*fits)(absl::string_view value);
  std::vector<std::string> flags;
};

// `sgd`: whether the file's optimizer is SGD, whose momentum is no other's first moment.
std::vector<Dependence> Dependences(bool sgd) {
  const std::vector<std::string> of_sgd = {"nesterov", "beta1"};
  return {
      // Before a plan takes --offload with it: a file of one's own may offload, too.
      {"offload", [](absl::string_view value) { return !value.empty(); }, {"offload_folder"}},
      // A plan of one's own says these itself.
      {"plan",
       [](absl::string_view value) { return !absl::EndsWith(value, ".json"); },
       {"overlap", "bucket_mb", "offload"}},
      {"dtype",
       [](absl::string_view value) { return value == "f16"; },
       {"loss_scale", "loss_scale_window", "loss_scale_hysteresis", "min_loss_scale"}},
      {"loss_scale_window",
       [](absl::string_view value) { return value != "0"; },
       {"loss_scale_hysteresis", "min_loss_scale"}},
      {"optimizer", [](absl::string_view value) { return value == "sgd"; },
       sgd ? of_sgd : std::vector<std::string>()},
      {"optimizer", HasEps, {"eps"}},
      {"optimizer", HasBeta1, {"beta1"}},
      {"optimizer", HasBeta2, {"beta2"}},
      {"schedule_lr", [](absl::string_view value) { return value != "one_cycle"; }, {"warmup_shape"}},
      {"schedule_lr", HasFloor, {"min_lr", "min_lr_ratio"}},
      // A floor that is a number would count, and not the share.
      {"min_lr_ratio",
       [](absl::string_view value) {
         double ratio = -1;
         return !absl::SimpleAtod(value, &ratio) || ratio < 0;
       },
       {"min_lr"}},
  };
}

// The command line or another file may give the flag that others depend on. Those that do not fit it are dropped: an error
// would name flags that nobody gave.
std::vector<FlagValue> WithoutMoot(std::vector<FlagValue> values, const DeepSpeedConfig& config,
                                   const FlagsAround& around) {
  if (!around.is_given) return values;
  const bool sgd = config.optimizer && config.optimizer->type == "SGD";
  for (const Dependence& each : Dependences(sgd)) {
    const bool says = absl::c_any_of(values, [&](const FlagValue& said) { return said.flag == each.on; });
    if ((says && !around.is_given(each.on)) || each.fits(around.value_of(each.on))) continue;
    std::erase_if(values,
                  [&](const FlagValue& said) { return absl::c_linear_search(each.flags, said.flag); });
  }
  return values;
}

}  // namespace

std::vector<FlagValue> GptFlagsFromDeepSpeed(absl::string_view text, const FlagsAround& around) {
  const DeepSpeedConfig config = DeepSpeedConfig::FromJson(text);
  const DeviceMesh mesh = MeshOf(around.value_of("mesh"), around.value_of("mesh_choices"),
                                 NumLaunchedRanks(ParseBackend(around.value_of("backend"))));
  Flags flags;
  const DeepSpeedBatch batch = ResolveDeepSpeedBatch(config, DataParallelRanks(mesh));
  flags.Set("batch", batch.batch);
  flags.Set("microbatches", batch.microbatches);
  flags.Set("grad_clip", config.gradient_clipping);
  if (!config.gradient_clipping && !config.auto_clipping) flags.SetDefault("grad_clip", "0");
  flags.Set("log_every", config.steps_per_print);
  Precision(config, flags);
  if (config.zero_optimization)
    Zero(*config.zero_optimization, mesh, ParseDevice(around.value_of("device")), flags);
  std::optional<double> lr;
  if (config.optimizer) lr = Optimizer(*config.optimizer, flags);
  if (config.scheduler) {
    Scheduler(*config.scheduler, lr, flags);
  } else if (lr) {
    flags.Set("lr", lr);
    flags.Set("warmup", std::string("0"));
    flags.Set("schedule_lr", std::string("constant"));
  }
  return WithoutMoot(flags.values(), config, around);
}

ForeignConfig DeepSpeedForGpt() {
  return {.name = "DeepSpeed", .keys = DeepSpeedKeys(), .translate = &GptFlagsFromDeepSpeed};
}

}  // namespace weft
