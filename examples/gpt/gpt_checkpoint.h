#ifndef WEFT_EXAMPLES_GPT_GPT_CHECKPOINT_H_
#define WEFT_EXAMPLES_GPT_GPT_CHECKPOINT_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/checkpoint/state/state.h"
#include "dtensor/nn/gpt.h"
#include "runtime/base/flags.h"
#include "runtime/data/tokenizer.h"

namespace weft {

// What train_gpt saves besides tensors, as texts in one safetensors file: the step, the position in the data, the
// tokenizer, a fingerprint of the text, and the flags that shaped the run.
struct GptCheckpointInfo {
  std::string source = {};  // the flag that it was read from, for errors; not saved
  int64_t step = 0;
  std::string data = {};  // GptData::State; empty in files of before there was one
  std::string tokenizer;  // Tokenizer::ToJson
  uint64_t text_fingerprint = 0;
  GptConfig model;
  DType dtype = DType::kF32;
  SafetensorsMetadata flags;  // by name
  ParsedFlags parsed = {};    // the command line of a run that trains; not saved
  std::string config;  // EffectiveConfig: all flags, as a file for --config; for people, not read again
};

// Saves the tensors of a run (CheckpointTensors, and what else is state) and `info`. Every rank calls it alike.
void SaveGpt(const std::string& path, Gpt& model, const std::vector<std::pair<std::string, DTensor>>& tensors,
             const GptCheckpointInfo& info);

// Of a run that saves, before its first step: at the first save it would be too late.
// Errors: InvalidArgument naming a flag whose value is not UTF-8, as what files keep has to be. Paths may be anything.
void CheckCanSave(const GptCheckpointInfo& info);

// What of `info` is saved, as texts by name, and the inverse; errors call them `path`.
// Errors: DataLoss naming what is missing or broken.
StateTexts GptTexts(const GptCheckpointInfo& info);
GptCheckpointInfo ReadGptInfo(const std::string& path, const StateTexts& texts);

// The values of the flags that a resumed run takes from its checkpoint, as they are now. `scales_loss`: also those that say
// how its loss scale goes.
SafetensorsMetadata ResumableFlags(bool scales_loss);

// Sets each flag of the checkpoint that the command line did not give: of a file that was saved, and of a folder in which a
// run goes on. With another batch --batch_policy=linear and sqrt scale the rates. `scales_loss`: whether the run that goes on
// scales its loss; another takes over nothing of a scale.
// Errors: InvalidArgument for a flag that shapes the model and was given another value: what was saved wins. Of a folder
//         also for the seed, the share of text for validation and, under --batch_policy=keep, the batch; of a file another
//         batch is taken then, and the rates stay. --context=0 is no other value.
void RestoreGptFlags(const GptCheckpointInfo& saved, const ParsedFlags& parsed, bool scales_loss);
void RestoreGptRun(const GptCheckpointInfo& saved, const ParsedFlags& parsed, bool scales_loss);

// `loaded`: what a run that has the flags `now` has loaded. `read`: of the folder's step whose flags it took over, if any: then
// those that it was given may differ from what was loaded. What means nothing of the schedule and the optimizer does not count.
// Errors: as RequireSameFlags.
void RequireSameRun(const GptCheckpointInfo& loaded, const GptCheckpointInfo* read,
                    const GptCheckpointInfo& now);

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_CHECKPOINT_H_
