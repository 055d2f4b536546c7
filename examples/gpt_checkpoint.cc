#include "examples/gpt_checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "nlohmann/json.hpp"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

// Flags that a checkpoint keeps. The first group shapes the model and the optimizer's state: another value
// cannot load them.
constexpr const char* kModelFlags[] = {"model",   "layers", "heads",     "dim",      "vocab_size",
                                       "context", "dtype",  "tokenizer", "optimizer"};
constexpr const char* kTrainingFlags[] = {"batch",       "steps",        "lr",    "min_lr",       "warmup",
                                          "schedule_lr", "weight_decay", "beta1", "beta2",        "seed",
                                          "grad_clip",   "dropout",      "data",  "val_fraction", "shuffle"};

absl::CommandLineFlag& Flag(const std::string& name) {
  absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
  WEFT_CHECK(flag != nullptr, "no flag --", name);
  return *flag;
}

std::string Required(const SafetensorsReader& reader, const std::string& field) {
  const auto it = reader.metadata().find(field);
  if (it == reader.metadata().end()) {
    Throw(absl::StatusCode::kDataLoss, "'", reader.path(), "' is not a checkpoint of train_gpt: it has no '",
          field, "'");
  }
  return it->second;
}

}  // namespace

void CheckCanSave(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  WEFT_REQUIRE(std::filesystem::is_directory(folder) && access(folder.c_str(), W_OK) == 0, "--save=", path,
               ": cannot write to the folder '", folder.string(), "'");
}

void SaveGpt(const std::string& path, Gpt& model, const std::vector<std::pair<std::string, DTensor>>& tensors,
             const GptCheckpointInfo& info) {
  const Json config = {{"vocabulary", info.model.vocabulary},
                       {"context", info.model.context},
                       {"layers", info.model.layers},
                       {"heads", info.model.heads},
                       {"dim", info.model.dim},
                       {"dropout", info.model.dropout},
                       {"tied_head", info.model.tied_head},
                       {"dtype", std::string(DTypeName(info.dtype))}};
  SaveTensors(path, tensors,
              {{"weft.step", absl::StrCat(info.step)},
               {"weft.data", info.data},
               {"weft.tokenizer", info.tokenizer},
               {"weft.text_fingerprint", absl::StrCat(info.text_fingerprint)},
               {"weft.model", config.dump()},
               {"weft.flags", Json(info.flags).dump()},
               {"weft.config", info.config}},
              model.stages() ? &*model.stages() : nullptr);
}

GptCheckpointInfo ReadGptInfo(const SafetensorsReader& reader) {
  GptCheckpointInfo info;
  const bool numbers = absl::SimpleAtoi(Required(reader, "weft.step"), &info.step) &&
                       absl::SimpleAtoi(Required(reader, "weft.text_fingerprint"), &info.text_fingerprint);
  if (const auto it = reader.metadata().find("weft.data"); it != reader.metadata().end()) {
    info.data = it->second;
  }
  info.tokenizer = Required(reader, "weft.tokenizer");
  try {
    const Json config = Json::parse(Required(reader, "weft.model"));
    info.model = {.vocabulary = config.at("vocabulary"),
                  .context = config.at("context"),
                  .layers = config.at("layers"),
                  .heads = config.at("heads"),
                  .dim = config.at("dim"),
                  .dropout = config.at("dropout"),
                  .tied_head = config.at("tied_head")};
    info.dtype = ParseDType(config.at("dtype").get<std::string>());
    info.flags = Json::parse(Required(reader, "weft.flags")).get<SafetensorsMetadata>();
  } catch (const Json::exception& error) {
    Throw(absl::StatusCode::kDataLoss, "'", reader.path(), "': broken configuration: ", error.what());
  }
  if (!numbers) Throw(absl::StatusCode::kDataLoss, "'", reader.path(), "': broken step or fingerprint");
  return info;
}

SafetensorsMetadata ResumableFlags() {
  SafetensorsMetadata flags;
  for (const char* name : kModelFlags) flags[name] = Flag(name).CurrentValue();
  for (const char* name : kTrainingFlags) flags[name] = Flag(name).CurrentValue();
  if (!flags["data"].empty()) flags["data"] = std::filesystem::absolute(UserPath(flags["data"])).string();
  return flags;
}

void RestoreFlags(const SafetensorsMetadata& saved, const ParsedFlags& parsed) {
  for (const auto& [name, value] : saved) {
    absl::CommandLineFlag& flag = Flag(name);
    if (!parsed.Given(name)) {
      std::string error;
      if (!flag.ParseFrom(value, &error))
        Throw(absl::StatusCode::kDataLoss, "checkpoint flag --", name, ": ", error);
      continue;
    }
    const bool shapes_model =
        std::find(std::begin(kModelFlags), std::end(kModelFlags), name) != std::end(kModelFlags);
    WEFT_REQUIRE(!shapes_model || flag.CurrentValue() == value, "--", name, "=", flag.CurrentValue(),
                 ": the checkpoint to resume from was made with '", value, "'; leave the flag out");
  }
}

}  // namespace weft
