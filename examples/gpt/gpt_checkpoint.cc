#include "examples/gpt/gpt_checkpoint.h"

#include <filesystem>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "examples/checkpoint_flags.h"
#include "examples/gpt/flag_uses.h"
#include "examples/gpt/rate_floor.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"
#include "runtime/data/utf8.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// Flags that a checkpoint keeps. The first group shapes the model and the optimizer's state: another value
// cannot load them.
constexpr const char* kModelFlags[] = {"model",   "layers", "heads",     "dim",      "vocab_size",
                                       "context", "dtype",  "tokenizer", "optimizer"};
constexpr const char* kTrainingFlags[] = {
    "batch",  "batch_ranks",  "microbatches", "steps",     "lr",          "min_lr",       "min_lr_ratio",
    "warmup", "warmup_shape", "nesterov",     "eps",       "schedule_lr", "weight_decay", "beta1",
    "beta2",  "dropout",      "seed",         "grad_clip", "data",        "shuffle",      "val_fraction"};
// Of a run that computes in f16 alone: others are refused with them.
constexpr const char* kLossScaleFlags[] = {"loss_scale", "loss_scale_window", "loss_scale_hysteresis",
                                           "min_loss_scale"};

absl::CommandLineFlag& Flag(const std::string& name) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  WEFT_CHECK(flag != nullptr, "no flag --", name);
  return *flag;
}

std::string Required(const std::string& path, const StateTexts& texts, const std::string& field) {
  const auto it = texts.find(field);
  if (it == texts.end()) {
    Throw(absl::StatusCode::kDataLoss, "'", path, "' is not a checkpoint of train_gpt: it has no '", field,
          "'");
  }
  return it->second;
}

// The number that a flag has; -1, which says nothing of a rate, where it has none.
double NumberOf(const SafetensorsMetadata& flags, const std::string& name) {
  double number = -1;
  const auto found = flags.find(name);
  return found != flags.end() && absl::SimpleAtod(found->second, &number) ? number : -1;
}

// The flags, with a floor that follows --lr, since no flag says it, as the number that it is. A rate that stays has none.
SafetensorsMetadata WithFloor(SafetensorsMetadata flags) {
  const auto schedule = flags.find("schedule_lr");
  if (schedule != flags.end() && !HasFloor(schedule->second)) return flags;
  const double peak = NumberOf(flags, "lr");
  if (peak < 0 || NumberOf(flags, "min_lr") >= 0 || NumberOf(flags, "min_lr_ratio") >= 0) return flags;
  flags["min_lr"] = absl::StrFormat("%.17g", RateFloor(peak));
  return flags;
}

// Of a rate that a batch policy is about to scale: the floor that followed it becomes a rate of its own, scaled as well.
void FixFloor() {
  std::string error;
  Flag("min_lr").ParseFrom(WithFloor(ResumableFlags(/*scales_loss=*/false))["min_lr"], &error);
}

// What of a checkpoint's flags means something in a run that goes on.
SafetensorsMetadata MeaningfulFlags(const GptCheckpointInfo& saved, const ParsedFlags& parsed,
                                    bool scales_loss) {
  SafetensorsMetadata flags = saved.flags;
  if (!scales_loss) {
    for (const char* name : kLossScaleFlags) flags.erase(name);
  }
  // A scale that stays from now on does not shrink.
  if (parsed.Given("loss_scale_window") && Flag("loss_scale_window").CurrentValue() == "0") {
    flags.erase("loss_scale_hysteresis");
    flags.erase("min_loss_scale");
  }
  // It grows in a way of its own.
  if (parsed.Given("schedule_lr") && Flag("schedule_lr").CurrentValue() == "one_cycle") {
    flags.erase("warmup_shape");
  }
  // What means nothing of the schedule or the optimizer that holds: earlier versions took it, and kept it.
  const auto value_of = [&](const std::string& name) {
    const auto found = saved.flags.find(name);
    const bool is_now = found == saved.flags.end() || parsed.Given(name);
    return is_now ? Flag(name).CurrentValue() : found->second;
  };
  if (!HasFloor(value_of("schedule_lr"))) {
    flags.erase("min_lr");
    flags.erase("min_lr_ratio");
  }
  const std::string optimizer = value_of("optimizer");
  if (!HasBeta1(optimizer)) flags.erase("beta1");
  if (!HasBeta2(optimizer)) flags.erase("beta2");
  return flags;
}

// What of them holds for it.
SafetensorsMetadata FlagsFor(const GptCheckpointInfo& saved, const ParsedFlags& parsed, bool scales_loss) {
  SafetensorsMetadata flags = MeaningfulFlags(saved, parsed, scales_loss);
  // A number would count, and not the share that is given now.
  if (parsed.Given("min_lr_ratio")) flags.erase("min_lr");
  return flags;
}

// What --batch_policy makes of the rates, whose flags have been restored; as ApplyBatchPolicy.
void ScaleRates(const GptCheckpointInfo& saved, const ParsedFlags& parsed, bool scales_loss) {
  const auto batch = saved.flags.find("batch");
  const bool is_other_batch = batch != saved.flags.end() && batch->second != Flag("batch").CurrentValue();
  if (is_other_batch && !parsed.Given("lr")) FixFloor();
  std::vector<std::string> rates = {"lr"};
  // A floor that is a share of the rate follows it by itself.
  if (NumberOf(ResumableFlags(scales_loss), "min_lr") >= 0) rates.push_back("min_lr");
  ApplyBatchPolicy(saved.flags, parsed, rates);
}

// What was said of the run: a context of 0, which a file of --print_config names as well, is what the checkpoint has.
ParsedFlags WithoutDefaultContext(ParsedFlags parsed) {
  if (Flag("context").CurrentValue() == "0") parsed.given.erase("context");
  return parsed;
}

// Before checkpoints had a format of flags, --min_lr had a default of 0.0001, which was taken as not given.
void ReadOlderFlags(SafetensorsMetadata& flags) {
  const auto floor = flags.find("min_lr");
  if (floor != flags.end() && floor->second == "0.0001") floor->second = "-1";
}

}  // namespace

void CheckCanSave(const GptCheckpointInfo& info) {
  for (const auto& [name, value] : info.flags) {
    WEFT_REQUIRE(IsUtf8(value), "--", name, "=", PrintableText(value),
                 ": expected UTF-8, which checkpoints keep it in; rename it, or save nothing");
  }
}

StateTexts GptTexts(const GptCheckpointInfo& info) {
  const Json config = {{"vocabulary", info.model.vocabulary},
                       {"context", info.model.context},
                       {"layers", info.model.layers},
                       {"heads", info.model.heads},
                       {"dim", info.model.dim},
                       {"dropout", info.model.dropout},
                       {"tied_head", info.model.tied_head},
                       {"dtype", std::string(DTypeName(info.dtype))}};
  return {{"weft.step", absl::StrCat(info.step)},
          {"weft.data", info.data},
          {"weft.tokenizer", info.tokenizer},
          {"weft.text_fingerprint", absl::StrCat(info.text_fingerprint)},
          {"weft.model", config.dump()},
          {"weft.flags", Json(info.flags).dump()},
          {"weft.flags_format", "2"},
          {"weft.config", info.config}};
}

void SaveGpt(const std::string& path, Gpt& model, const std::vector<std::pair<std::string, DTensor>>& tensors,
             const GptCheckpointInfo& info) {
  SaveTensors(path, tensors, GptTexts(info), PartsOf(model));
}

GptCheckpointInfo ReadGptInfo(const std::string& path, const StateTexts& texts) {
  GptCheckpointInfo info;
  const bool numbers =
      absl::SimpleAtoi(Required(path, texts, "weft.step"), &info.step) &&
      absl::SimpleAtoi(Required(path, texts, "weft.text_fingerprint"), &info.text_fingerprint);
  if (const auto it = texts.find("weft.data"); it != texts.end()) info.data = it->second;
  info.tokenizer = Required(path, texts, "weft.tokenizer");
  try {
    const Json config = Json::parse(Required(path, texts, "weft.model"));
    info.model = {.vocabulary = config.at("vocabulary"),
                  .context = config.at("context"),
                  .layers = config.at("layers"),
                  .heads = config.at("heads"),
                  .dim = config.at("dim"),
                  .dropout = config.at("dropout"),
                  .tied_head = config.at("tied_head")};
    info.dtype = ParseDType(config.at("dtype").get<std::string>());
    info.flags = Json::parse(Required(path, texts, "weft.flags")).get<SafetensorsMetadata>();
  } catch (const Json::exception& error) {
    Throw(absl::StatusCode::kDataLoss, "'", path, "': broken configuration: ", error.what());
  }
  if (texts.count("weft.flags_format") == 0) ReadOlderFlags(info.flags);
  if (!numbers) Throw(absl::StatusCode::kDataLoss, "'", path, "': broken step or fingerprint");
  return info;
}

SafetensorsMetadata ResumableFlags(bool scales_loss) {
  SafetensorsMetadata flags;
  for (const char* name : kModelFlags) flags[name] = Flag(name).CurrentValue();
  for (const char* name : kTrainingFlags) flags[name] = Flag(name).CurrentValue();
  if (scales_loss) {
    for (const char* name : kLossScaleFlags) flags[name] = Flag(name).CurrentValue();
  }
  if (!flags["data"].empty()) flags["data"] = std::filesystem::absolute(UserPath(flags["data"])).string();
  return flags;
}

void RestoreGptFlags(const GptCheckpointInfo& saved, const ParsedFlags& parsed, bool scales_loss) {
  RestoreFlags(FlagsFor(saved, parsed, scales_loss), WithoutDefaultContext(parsed),
               {std::begin(kModelFlags), std::end(kModelFlags)});
  if (Flag("batch_policy").CurrentValue() != "keep") ScaleRates(saved, parsed, scales_loss);
}

void RestoreGptRun(const GptCheckpointInfo& saved, const ParsedFlags& parsed, bool scales_loss) {
  std::vector<std::string> fixed(std::begin(kModelFlags), std::end(kModelFlags));
  fixed.insert(fixed.end(), {"seed", "val_fraction", "shuffle"});
  RestoreFlags(FlagsFor(saved, parsed, scales_loss), WithoutDefaultContext(parsed), fixed);
  ScaleRates(saved, parsed, scales_loss);
}

void RequireSameRun(const GptCheckpointInfo& loaded, const GptCheckpointInfo* read,
                    const GptCheckpointInfo& now) {
  const SafetensorsMetadata flags = WithFloor(now.flags);
  if (read == nullptr) {
    const SafetensorsMetadata made_with = MeaningfulFlags(loaded, now.parsed, /*scales_loss=*/true);
    return RequireSameFlags(loaded.step, WithFloor(made_with), flags, flags);
  }
  const SafetensorsMetadata taken =
      WithGiven(FlagsFor(loaded, now.parsed, /*scales_loss=*/true), now.flags, now.parsed);
  RequireSameFlags(loaded.step, WithFloor(taken), WithFloor(read->flags), flags);
}

}  // namespace weft
