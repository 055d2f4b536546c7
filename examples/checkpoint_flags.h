// The flags of a trainer whose checkpoints lie in a folder, and what a run that goes on there may change.

#ifndef WEFT_EXAMPLES_CHECKPOINT_FLAGS_H_
#define WEFT_EXAMPLES_CHECKPOINT_FLAGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/checkpoint/state/checkpoint_manager.h"
#include "dtensor/checkpoint/state/state.h"
#include "runtime/base/flags.h"

namespace weft {

// --checkpoint_dir, --save_every, --keep, --save_in_background, --save_incremental, --save_bandwidth, --snapshot_every,
// --batch_policy, --batch_ranks: for FlagsUsage.
FlagGroup CheckpointFlags();

// The folder of --checkpoint_dir, or empty.
std::string CheckpointFolder();

// What the flags say; nothing without a folder.
// Errors: InvalidArgument naming the flag; also for a folder that is a file, for flags of saving or snapshots without a folder, and
//         for snapshots without an agent of weft_run, which keeps them.
std::optional<CheckpointOptions> CheckpointOptionsFromFlags();

// A step, and the texts that it was saved with.
struct SavedStep {
  int64_t step = 0;
  StateTexts texts = {};
};
// The newest step of the folder with a manifest; nothing without a folder, or such a step. For flags, which a program has to
// know before it has a world: the mesh, which they say, says how many ranks the world has, and there is no store yet in which
// one rank could look for all.
// Which step is whole, and whether one is, one rank finds out when there is a world: CheckpointManager. So it may load another
// step than this: RequireSameFlags.
// Cost:   every rank reads one small file.
// Errors: those of the folder, but for manifests that are broken or missing.
std::optional<SavedStep> FindSavedStep();

// For a program that has loaded another step, or a snapshot, than FindSavedStep has read: that happens where the newest step
// turns out not to be whole, and where a machine sees a new name late. What was taken over must be what would have been
// taken over from the step `loaded`: flags by name, as they were saved with it.
// `read`: those of the step that was read; the same as `now` without one. `now`: as they are.
// Errors: FailedPrecondition naming the first flag that is none of both, and its values.
void RequireSameFlags(int64_t step, const std::map<std::string, std::string>& loaded,
                      const std::map<std::string, std::string>& read,
                      const std::map<std::string, std::string>& now);

// What a run that was given `parsed`, and whose flags are `now`, would have taken over of `saved`: flags that were given are as
// they are now. For `loaded` above, where a step was read: otherwise RestoreFlags has not looked at what was given.
std::map<std::string, std::string> WithGiven(std::map<std::string, std::string> saved,
                                             const std::map<std::string, std::string>& now,
                                             const ParsedFlags& parsed);

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

struct ScaledBatch {
  int64_t batch = 0;
  double rate = 1;  // that learning rates are multiplied by

  bool operator==(const ScaledBatch&) const = default;
};

// What a mesh of `num_ranks` makes of `batch`, which is meant for --batch_ranks ranks:
//
//   --batch_policy   --batch_ranks   ranks   batch 32   rate
//   any              0               2       32         1
//   linear           4               2       16         1/2
//   sqrt             4               2       16         1/sqrt(2)
//
// Rounded to the nearest multiple of `multiple`, which divides `batch`, that is above 0 and not below `least`, which is at most
// `batch`; the rate follows what the batch has become. A function of the flags and the mesh alone, so that all lives of a job with as many ranks agree.
// Errors: InvalidArgument naming the flag, for another policy, a negative number, and for keep where --batch_ranks is not 0.
ScaledBatch BatchForRanks(int64_t batch, int64_t multiple, int64_t num_ranks, int64_t least = 1);

}  // namespace weft

#endif  // WEFT_EXAMPLES_CHECKPOINT_FLAGS_H_
