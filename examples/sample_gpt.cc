// Lets a GPT that train_gpt saved write on from a prompt.
//
//   bazel run //examples:train_gpt -- --save=/tmp/gpt.safetensors
//   bazel run //examples:sample_gpt -- --model=/tmp/gpt.safetensors --prompt="hacker: n. " --temperature=0.8
//
// Prints the prompt and its continuation; bytes that are not text are printed escaped. The mesh need not be
// the one the model was trained on: weights are read piece by piece.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "examples/gpt/gpt_checkpoint.h"
#include "examples/gpt/gpt_plan.h"
#include "examples/gpt/gpt_text.h"
#include "parallel/parallelize.h"
#include "runtime/base/error.h"
#include "runtime/base/flag_values.h"
#include "runtime/base/flags.h"
#include "runtime/data/tokenizer.h"
#include "runtime/data/utf8.h"
#include "runtime/device/device_backend.h"
#include "runtime/launch/run_ranks.h"

ABSL_FLAG(std::string, model, "", "file that train_gpt --save wrote");
ABSL_FLAG(std::string, prompt, "\n",
          "text to continue; of a model without a new line, unless given, its first character");
ABSL_FLAG(int64_t, tokens, 500, "tokens to generate");
ABSL_FLAG(double, temperature, 0.8,
          "divides the logits: above 1 wilder, below 1 tamer, 0 always the likeliest token");
ABSL_FLAG(int64_t, top_k, 0, "draw among this many likeliest tokens; 0: all");
ABSL_FLAG(uint64_t, seed, 1337, "of the draws");
ABSL_FLAG(std::string, mesh, "", "axes and their sizes; empty: a single rank");
ABSL_FLAG(std::string, device, "auto",
          "where tensors lie: cpu, cuda (a GPU; build with --config=cuda), auto (cuda where there is one)");

namespace weft {
namespace {

FlagsUsage Usage() {
  return {.summary = "Generates text with a GPT that train_gpt saved.",
          .groups = {{"Model", {"model", "mesh", "device"}},
                     {"Text", {"prompt", "tokens", "temperature", "top_k", "seed"}}},
          .examples = {"sample_gpt --model=gpt.safetensors --prompt='hacker: n. '",
                       "sample_gpt --model=gpt.safetensors --temperature=0 --tokens=100"}};
}

// The prompt. Where none is given, and the vocabulary of a text's characters lacks the new line, the first of these.
std::string PromptFrom(const Tokenizer& tokenizer) {
  std::string prompt = absl::GetFlag(FLAGS_prompt);
  try {
    tokenizer.Encode(prompt);
  } catch (const Error& error) {
    if (IsGiven("prompt")) Throw(error.code(), "--prompt: ", error.message());
    const int32_t first[] = {0};
    prompt = tokenizer.Decode(first);
  }
  return prompt;
}

int Generate() {
  const std::string path = UserPath(absl::GetFlag(FLAGS_model));
  const SampleOptions options = {.num_tokens = absl::GetFlag(FLAGS_tokens),
                                 .temperature = absl::GetFlag(FLAGS_temperature),
                                 .top_k = absl::GetFlag(FLAGS_top_k),
                                 .seed = absl::GetFlag(FLAGS_seed)};
  WEFT_REQUIRE(!path.empty(), "--model: expected a file that train_gpt --save wrote, got none");
  WEFT_REQUIRE(options.num_tokens >= 0, "--tokens=", options.num_tokens, ": expected 0 or more");
  WEFT_REQUIRE(options.temperature >= 0, "--temperature=", options.temperature, ": expected 0 or more");
  WEFT_REQUIRE(options.top_k >= 0, "--top_k=", options.top_k, ": expected 0 or more");
  WEFT_REQUIRE(!absl::GetFlag(FLAGS_prompt).empty(), "--prompt: expected at least one character, got none");
  const DeviceMesh mesh = DeviceMesh::Parse(absl::GetFlag(FLAGS_mesh));
  const Plan plan = GptPlan(mesh, DataPlan::kDdp, /*sequence_parallel=*/false);
  const GptCheckpointInfo info = ReadGptInfo(path, SafetensorsReader(path).metadata());
  const std::unique_ptr<Tokenizer> tokenizer = TokenizerFromJson(info.tokenizer);
  const std::string prompt = PromptFrom(*tokenizer);
  const std::vector<int32_t> tokens = tokenizer->Encode(prompt);

  const auto generate = [&](World& world) {
    Gpt model(info.model);
    Parallelize(model, world, mesh, plan, {.dtype = info.dtype});
    SafetensorsReader reader(path);
    LoadParameters(reader, model);
    const std::vector<int32_t> sample =
        SampleGpt(model, BatchLayout(mesh, plan), tokens, tokenizer->vocab_size(), options);
    if (world.rank() == 0)
      std::printf("%s%s\n", prompt.c_str(), PrintableText(tokenizer->Decode(sample)).c_str());
  };
  RunRanks(static_cast<int>(mesh.num_ranks()), generate,
           {.device = ParseDevice(absl::GetFlag(FLAGS_device))});
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::RunMain(argc, argv, weft::Usage(), weft::Generate); }
