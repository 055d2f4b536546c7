#include "parallel/deepspeed/deepspeed_config.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/base/json_text.h"
#include "runtime/base/repeated_key.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// An object of the file, whose keys are read one by one. What nobody has asked for is unknown.
class Section {
 public:
  Section(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
    WEFT_REQUIRE(object.is_object(), path_.empty() ? "" : absl::StrCat("key \"", path_, "\": "),
                 "expected an object, got ", JsonText(object));
  }

  std::string PathOf(absl::string_view key) const {
    return path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key);
  }

  // Nothing if the key is not there, or "auto".
  const Json* Find(const char* key) {
    known_.push_back(key);
    const auto found = object_.find(key);
    return found == object_.end() || *found == "auto" ? nullptr : &*found;
  }
  bool IsAuto(const char* key) const { return object_.contains(key) && object_.at(key) == "auto"; }
  // Of a key that Find has not found: what is there instead.
  const char* Instead(const char* key) const { return IsAuto(key) ? "got \"auto\"" : "it is missing"; }

  template <class... Parts>
  void Require(bool fits, const char* key, const Json& given, const Parts&... expected) const {
    WEFT_REQUIRE(fits, "key \"", PathOf(key), "\": expected ", absl::StrCat(expected...), ", got ",
                 JsonText(given));
  }

  std::optional<bool> Bool(const char* key) {
    const Json* const value = Find(key);
    if (value == nullptr) return std::nullopt;
    Require(value->is_boolean(), key, *value, "true or false");
    return value->get<bool>();
  }
  std::optional<double> Number(const char* key, double least = 0) {
    const Json* const value = Find(key);
    if (value == nullptr) return std::nullopt;
    Require(value->is_number() && value->get<double>() >= least, key, *value, "a number of ", least,
            " or more");
    return value->get<double>();
  }
  // Also 5e8, as DeepSpeed's own files write it.
  std::optional<int64_t> Whole(const char* key, int64_t least) {
    const Json* const value = Find(key);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->get<double>() : 0.5;
    Require(std::trunc(number) == number && number >= static_cast<double>(least) && number < 0x1p53, key,
            *value, "a whole number of ", least, " or more");
    return static_cast<int64_t>(number);
  }
  std::optional<std::string> String(const char* key) {
    const Json* const value = Find(key);
    if (value == nullptr) return std::nullopt;
    Require(value->is_string(), key, *value, "a text");
    return value->get<std::string>();
  }
  std::string OneOf(const char* key, std::initializer_list<const char*> names) {
    const Json* const value = Find(key);
    WEFT_REQUIRE(value != nullptr, "key \"", PathOf(key), "\": expected ", absl::StrJoin(names, " or "), ", ",
                 Instead(key));
    for (const char* name : names) {
      if (*value == name) return name;
    }
    Require(false, key, *value, absl::StrJoin(names, " or "));
    return "";
  }
  std::optional<Section> Object(const char* key) {
    const Json* const value = Find(key);
    if (value == nullptr) return std::nullopt;
    return Section(*value, PathOf(key));
  }
  // What Weft does whatever the file says, so a file may only say that.
  template <class T>
  void Fixed(const char* key, const T& what, absl::string_view why) {
    const Json* const value = Find(key);
    if (value != nullptr) Require(*value == Json(what), key, *value, JsonText(Json(what)), " (", why, ")");
  }

  // Errors: InvalidArgument for a key that nobody has asked for.
  void Finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      const std::optional<std::string> meant = MeantName(key, known_);
      ThrowInvalidArgument("key \"", PathOf(key), "\": Weft has nothing for it",
                           meant ? absl::StrCat("; did you mean \"", PathOf(*meant), "\"?") : "");
    }
  }

 private:
  const Json& object_;
  std::string path_;
  std::vector<std::string> known_;
};

// A dynamic scale begins at 2 to it.
constexpr int64_t kDefaultScalePower = 16;
constexpr int64_t kMostHysteresis = 1000;

bool Bf16(Section section) {
  const bool enabled = section.Bool("enabled").value_or(false);
  // Where bf16 is not enabled they may say anything: nothing reads them.
  const auto fixed = [&](const char* key, bool what, absl::string_view why) {
    enabled ? section.Fixed(key, what, why) : void(section.Find(key));
  };
  fixed("bf16_master_weights_and_grads", false, "parameters at rest are f32");
  fixed("bf16_optimizer_states", false, "the optimizer's state is f32");
  fixed("check_grad_overflow", true, "a step that is not finite is skipped");
  section.Find("immediate_grad_update");  // when a buffer is written to: no values depend on it
  section.Finish();
  return enabled;
}

DeepSpeedFp16 Fp16(Section section) {
  DeepSpeedFp16 fp16 = {.enabled = section.Bool("enabled"),
                        .loss_scale = section.Number("loss_scale"),
                        .initial_scale_power = section.Whole("initial_scale_power", 0),
                        .loss_scale_window = section.Whole("loss_scale_window", 1),
                        .hysteresis = section.Whole("hysteresis", 1),
                        .min_loss_scale = section.Number("min_loss_scale")};
  if (fp16.initial_scale_power) {
    section.Require(*fp16.initial_scale_power <= 127, "initial_scale_power", Json(*fp16.initial_scale_power),
                    "at most 127 (the scale is an f32)");
  }
  if (fp16.loss_scale) {
    section.Require(*fp16.loss_scale <= std::numeric_limits<float>::max(), "loss_scale",
                    *section.Find("loss_scale"), "0 (the scale is dynamic), or a number that f32 holds");
  }
  if (fp16.hysteresis) {
    section.Require(*fp16.hysteresis <= kMostHysteresis, "hysteresis", *section.Find("hysteresis"),
                    "at most ", kMostHysteresis);
  }
  const int64_t power = fp16.initial_scale_power.value_or(kDefaultScalePower);
  const double initial = std::ldexp(1.0, static_cast<int>(power));
  if (fp16.min_loss_scale && fp16.loss_scale.value_or(0) == 0) {
    section.Require(*fp16.min_loss_scale <= initial, "min_loss_scale", *section.Find("min_loss_scale"),
                    "at most ", initial, ", 2 to the initial_scale_power");
  }
  section.Fixed("auto_cast", false, "what is f16 is the plan's");
  section.Fixed("consecutive_hysteresis", false, "hysteresis comes back when the scale grows");
  section.Fixed("fp16_master_weights_and_grads", false, "parameters at rest are f32");
  section.Finish();
  return fp16;
}

DeepSpeedOffload Offload(std::optional<Section> section) {
  DeepSpeedOffload offload;
  if (!section) return offload;
  if (section->Find("device") != nullptr) offload.device = section->OneOf("device", {"none", "cpu", "nvme"});
  offload.nvme_path = section->String("nvme_path");
  section->Bool("pin_memory");  // memory beside a GPU always is
  section->Fixed("ratio", 1.0, "all of the state is offloaded");
  section->Finish();
  return offload;
}

DeepSpeedZero Zero(Section section) {
  DeepSpeedZero zero = {.stage = section.Whole("stage", 0),
                        .overlap_comm = section.Bool("overlap_comm"),
                        .reduce_bucket_size = section.Whole("reduce_bucket_size", 1),
                        .offload_optimizer = Offload(section.Object("offload_optimizer")),
                        .offload_param = Offload(section.Object("offload_param"))};
  if (zero.stage) section.Require(*zero.stage <= 3, "stage", Json(*zero.stage), "0, 1, 2 or 3");
  section.Fixed("contiguous_gradients", true, "gradients move in buckets");
  section.Fixed("reduce_scatter", true, "gradients of sharded plans are reduce-scattered");
  section.Fixed("allgather_partitions", true, "parameters are gathered");
  section.Finish();
  const DeepSpeedOffload& state = zero.offload_optimizer;
  const DeepSpeedOffload& parameters = zero.offload_param;
  WEFT_REQUIRE(
      state.device != "nvme" || parameters.device != "nvme" || state.nvme_path == parameters.nvme_path,
      "key \"zero_optimization.offload_param.nvme_path\": expected that of offload_optimizer, ",
      state.nvme_path.value_or("none"), ", got ", parameters.nvme_path.value_or("none"));
  const bool offloads_parameters = zero.offload_param.device != "none";
  WEFT_REQUIRE(!offloads_parameters || !zero.stage || *zero.stage == 3,
               "key \"zero_optimization.offload_param\": expected stage 3 with it, got stage ",
               zero.stage.value_or(0));
  return zero;
}

DeepSpeedOptimizer Optimizer(Section section) {
  DeepSpeedOptimizer optimizer = {.type = section.OneOf("type", {"Adam", "AdamW", "Lion", "SGD"})};
  if (std::optional<Section> params = section.Object("params")) {
    optimizer.lr = params->Number("lr");
    optimizer.weight_decay = params->Number("weight_decay");
    if (optimizer.type == "SGD") {
      optimizer.momentum = params->Number("momentum");
      optimizer.nesterov = params->Bool("nesterov");
      WEFT_REQUIRE(!optimizer.nesterov.value_or(false) || optimizer.momentum.value_or(0) > 0 ||
                       params->IsAuto("momentum"),
                   "key \"optimizer.params.nesterov\": expected a momentum with it");
      params->Fixed("dampening", 0, "gradients are not dampened");
    } else if (const Json* const betas = params->Find("betas")) {
      const auto is_beta = [](const Json& beta) {
        return beta.is_number() && beta.get<double>() >= 0 && beta.get<double>() < 1;
      };
      const bool fits = betas->is_array() && betas->size() == 2 && absl::c_all_of(*betas, is_beta);
      params->Require(fits, "betas", *betas, "two numbers of at least 0 and below 1");
      optimizer.betas = betas->get<std::vector<double>>();
    }
    if (optimizer.type == "Adam" || optimizer.type == "AdamW") {
      optimizer.eps = params->Number("eps");
      if (optimizer.eps) {
        params->Require(*optimizer.eps > 0 && *optimizer.eps < 1, "eps", *params->Find("eps"),
                        "a number above 0 and below 1");
      }
      params->Fixed("adam_w_mode", true, "weights decay apart from the gradient");
      params->Fixed("bias_correction", true, "moments are corrected");
      params->Fixed("amsgrad", false, "the moments are AdamW's");
      // Which of two implementations; their defaults of the decay differ.
      WEFT_REQUIRE(!params->Bool("torch_adam").value_or(false) || optimizer.weight_decay ||
                       params->IsAuto("weight_decay"),
                   "key \"optimizer.params.weight_decay\": expected a number with torch_adam, it is missing, "
                   "which is 0.01 in torch's AdamW");
    }
    for (const char* key : {"lr", "betas", "weight_decay", "momentum", "nesterov"}) {
      if (params->IsAuto(key)) optimizer.auto_params.push_back(key);
    }
    params->Finish();
  }
  section.Finish();
  return optimizer;
}

DeepSpeedScheduler Scheduler(Section section) {
  DeepSpeedScheduler scheduler = {.type =
                                      section.OneOf("type", {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"})};
  std::optional<Section> params = section.Object("params");
  WEFT_REQUIRE(params, "key \"scheduler.params\": expected an object, ", section.Instead("params"));
  if (params->Find("warmup_type") != nullptr) {
    scheduler.warmup_type = params->OneOf("warmup_type", {"linear", "log"});
  } else if (!params->IsAuto("warmup_type")) {
    scheduler.warmup_type = "log";
  }
  scheduler.warmup_num_steps = params->Whole("warmup_num_steps", 1);
  scheduler.auto_warmup = params->IsAuto("warmup_num_steps");
  if (scheduler.type == "WarmupCosineLR") {
    params->Fixed("warmup_min_ratio", 0, "warm-ups begin at 0");
    scheduler.cos_min_ratio = params->Number("cos_min_ratio");
  } else {
    params->Fixed("warmup_min_lr", 0, "warm-ups begin at 0");
    scheduler.warmup_max_lr = params->Number("warmup_max_lr");
    WEFT_REQUIRE(
        scheduler.warmup_max_lr || params->IsAuto("warmup_max_lr"),
        "key \"scheduler.params.warmup_max_lr\": expected a number or \"auto\", it is missing, which "
        "is 0.001 in DeepSpeed, whatever the optimizer says");
  }
  if (scheduler.type != "WarmupLR") {
    scheduler.total_num_steps = params->Whole("total_num_steps", 1);
    WEFT_REQUIRE(scheduler.total_num_steps || params->IsAuto("total_num_steps"),
                 "key \"scheduler.params.total_num_steps\": expected a whole number, it is missing");
  }
  params->Finish();
  section.Finish();
  return scheduler;
}

}  // namespace

std::vector<std::string> DeepSpeedKeys() {
  return {"train_batch_size",
          "train_micro_batch_size_per_gpu",
          "gradient_accumulation_steps",
          "gradient_clipping",
          "zero_optimization",
          "fp16",
          "bf16",
          "scheduler"};
}

DeepSpeedConfig DeepSpeedConfig::FromJson(absl::string_view text) {
  RepeatedKey repeated;
  Json object;
  try {
    object = Json::parse(text.begin(), text.end(), repeated.Callback());
  } catch (const Json::exception& error) {
    ThrowInvalidArgument("no JSON: ", error.what());
  }
  WEFT_REQUIRE(!repeated.key(), "key \"", *repeated.key(), "\" is given twice");
  Section section(object, "");
  DeepSpeedConfig config = {
      .train_batch_size = section.Whole("train_batch_size", 1),
      .train_micro_batch_size_per_gpu = section.Whole("train_micro_batch_size_per_gpu", 1),
      .gradient_accumulation_steps = section.Whole("gradient_accumulation_steps", 1),
      .gradient_clipping = section.Number("gradient_clipping"),
      .auto_clipping = section.IsAuto("gradient_clipping"),
      .steps_per_print = section.Whole("steps_per_print", 1)};
  if (std::optional<Section> bf16 = section.Object("bf16")) config.bf16 = Bf16(*std::move(bf16));
  if (std::optional<Section> fp16 = section.Object("fp16")) config.fp16 = Fp16(*std::move(fp16));
  if (std::optional<Section> zero = section.Object("zero_optimization")) {
    config.zero_optimization = Zero(*std::move(zero));
  }
  if (std::optional<Section> optimizer = section.Object("optimizer")) {
    config.optimizer = Optimizer(*std::move(optimizer));
  }
  if (std::optional<Section> scheduler = section.Object("scheduler")) {
    config.scheduler = Scheduler(*std::move(scheduler));
  }
  section.Finish();
  WEFT_REQUIRE(!config.bf16.value_or(false) || !config.fp16 || !config.fp16->enabled.value_or(false),
               "keys \"bf16\" and \"fp16\": expected one of them enabled, got both");
  return config;
}

DeepSpeedBatch ResolveDeepSpeedBatch(const DeepSpeedConfig& config, int64_t data_parallel) {
  const std::optional<int64_t>& batch = config.train_batch_size;
  const std::optional<int64_t>& micro = config.train_micro_batch_size_per_gpu;
  const std::optional<int64_t>& steps = config.gradient_accumulation_steps;
  if (!batch && !micro) return {.batch = std::nullopt, .microbatches = steps};
  const auto text = [](const std::optional<int64_t>& value) {
    return value ? absl::StrCat(*value) : "not given";
  };
  const auto require = [&](bool fits, absl::string_view what) {
    WEFT_REQUIRE(fits, "train_batch_size (", text(batch), ") has to be train_micro_batch_size_per_gpu (",
                 text(micro), ") x gradient_accumulation_steps (", text(steps), ") x ", data_parallel,
                 " data-parallel ranks: ", what);
  };
  int64_t product = data_parallel;  // of those that are given
  const bool overflows = __builtin_mul_overflow(product, micro.value_or(1), &product) ||
                         __builtin_mul_overflow(product, steps.value_or(1), &product);
  require(!overflows, "their product is more than 2^63 - 1");
  if (!batch) return {.batch = product, .microbatches = steps.value_or(1)};
  if (micro && steps) {
    require(*batch == product, absl::StrCat("their product is ", product));
    return {.batch = batch, .microbatches = steps};
  }
  require(*batch % product == 0, absl::StrCat(product, " does not divide it"));
  return {.batch = batch, .microbatches = micro ? *batch / product : steps.value_or(1)};
}

}  // namespace weft
