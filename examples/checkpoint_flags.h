// The flags of a trainer whose checkpoints lie in a folder, and what a run that goes on there may change.

#ifndef WEFT_EXAMPLES_CHECKPOINT_FLAGS_H_
#define WEFT_EXAMPLES_CHECKPOINT_FLAGS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/checkpoint/state/state.h"
#include "runtime/base/flags.h"

namespace weft {

// --checkpoint_dir, --save_every, --keep, --save_in_background, --save_incremental, --save_bandwidth, --snapshot_every,
// --batch_policy: for FlagsUsage.
FlagGroup CheckpointFlags();

// The folder of --checkpoint_dir, or empty.
std::string CheckpointFolder();

// What the flags say; nothing without a folder.
// Errors: InvalidArgument naming the flag; so for snapshots without a folder, or an agent of weft_run that keeps them.
std::optional<CheckpointOptions> CheckpointOptionsFromFlags();

// A step, and the texts that it was saved with.
struct SavedStep {
  int64_t step = 0;
  StateTexts texts = {};
};
// The newest step of the folder that is whole; nothing without a folder, or a step in it. For what a program has to know
// before it has a world: CheckpointManager looks by itself.
// Errors: those of the folder.
std::optional<SavedStep> FindSavedStep();

// For a program that goes on by what FindSavedStep has read, the step `read`, with the tensors of the manager's newest step.
// Errors: FailedPrecondition naming both, where another process has saved or removed a step in between.
void RequireSameStep(const CheckpointManager& manager, std::optional<int64_t> read);

// Sets each flag of `saved` (values by name) that the command line did not give.
// `fixed`: flags that may not be given another value: what was saved is of the old one.
// Errors: InvalidArgument naming such a flag and both values.
void RestoreFlags(const std::map<std::string, std::string>& saved, const ParsedFlags& parsed,
                  const std::vector<std::string>& fixed);

// What --batch_policy makes of another --batch than the run was saved with. keep: an error that names both. linear and sqrt:
// flags in `rates` that the command line did not give are multiplied by the ratio of the batches, or its root. After
// RestoreFlags, of whose `fixed` the batch is none.
void ApplyBatchPolicy(const std::map<std::string, std::string>& saved, const ParsedFlags& parsed,
                      const std::vector<std::string>& rates);

}  // namespace weft

#endif  // WEFT_EXAMPLES_CHECKPOINT_FLAGS_H_
