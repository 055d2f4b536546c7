// Where a run of train_gpt is saved to, and goes on from: a file (--save, --resume), a folder (--checkpoint_dir), both.

#ifndef WEFT_EXAMPLES_GPT_GPT_SAVING_H_
#define WEFT_EXAMPLES_GPT_GPT_SAVING_H_

#include <cstdint>
#include <optional>
#include <string>

#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/checkpoint/state/state.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/loss_scale.h"
#include "dtensor/optim/optimizer.h"
#include "examples/gpt/gpt_checkpoint.h"
#include "examples/gpt/gpt_data.h"
#include "parallel/trainer.h"
#include "runtime/base/flags.h"
#include "runtime/launch/world.h"

namespace weft {

// What of a run is saved besides `GptCheckpointInfo`.
struct GptRunState {
  Gpt& model;
  Optimizer& optimizer;
  const LossScale* loss_scale = nullptr;  // null: there is none
};

// What the run goes on from: the newest step of --checkpoint_dir, otherwise the file of --resume; its flags are set
// then. Nothing without either. Of the folder it may be another step in the end: FindSavedStep.
// Errors: as RestoreGptRun, RestoreGptFlags.
std::optional<GptCheckpointInfo> ResumeFromFlags(const ParsedFlags& parsed);

// Saves and loads one rank's part. Every rank makes one.
// Lifetime: ends before the world; views the state.
class GptSaving {
 public:
  // `num_ranks`: that train, the world's first; others are spares. `options`: CheckpointOptionsFromFlags. `info`: of this run, whatever its step; `resumed`:
  // ResumeFromFlags. `save`, `resume`: files, or empty.
  // Errors: as CheckpointManager: a folder that a machine does not see is told before the first step.
  GptSaving(World& world, int64_t num_ranks, std::optional<CheckpointOptions> options,
            const GptCheckpointInfo& info, const std::optional<GptCheckpointInfo>& resumed,
            const std::string& save, const std::string& resume);

  // Loads the state, if there is one to go on from, and sets the trainer's step and the place in the data. Views all three.
  // Errors: as CheckpointManager::Resume; as RequireSameRun.
  void Resume(const GptRunState& state, GptData& data, Trainer& trainer);
  // Saves into the folder, and takes a snapshot, if it is time.
  void OnStepEnd(Trainer& trainer, int64_t step);
  // Saves, and waits until it is done. To the folder, then to the file, which is saved also where the folder was not.
  // Errors: as CheckpointManager::Save and Wait, once the file is saved; as SaveTensors.
  void OnLastStep(Trainer& trainer);

 private:
  void ResumeFromFolder(GptData& data, Trainer& trainer);

  World& world_;
  GptCheckpointInfo info_;
  const std::optional<GptCheckpointInfo> resumed_;
  const std::string save_;
  const std::string resume_;
  std::optional<CheckpointManager> folder_;
  std::optional<GptRunState> state_;
  const GptData* data_ = nullptr;
  State parts_;
};

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_GPT_SAVING_H_
