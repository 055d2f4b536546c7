// Which steps of a checkpoint folder are whole, and which stay for the elements that others have in them.

#ifndef WEFT_DTENSOR_CHECKPOINT_FOLDER_STEPS_VERDICT_H_
#define WEFT_DTENSOR_CHECKPOINT_FOLDER_STEPS_VERDICT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/folder/step_folder.h"

namespace weft {

struct StepsVerdict {
  std::map<int64_t, StepVerdict> steps;
  std::map<int64_t, Manifest> manifests;  // of those that are whole
  std::map<int64_t, std::vector<int64_t>>
      referred_to_by;  // the whole ones that have elements in a step, ascending

  std::vector<int64_t> ReferredToBy(int64_t step) const;
  // Whether the step has what whole ones refer to, but not all that it refers to itself: DropSteps leaves such steps.
  bool IsKeptForOthers(int64_t step) const;
  // Whether any is neither whole nor kept for others.
  bool HasBroken() const;
};

// Looks at these steps of the folder. One that cannot be read, as of a newer format, does not keep the others from being told of:
// that is its problem.
// Cost: as InspectStep of each; with elements, as VerifyStep.
StepsVerdict InspectSteps(Files& files, const std::string& folder, const std::vector<int64_t>& steps,
                          bool with_elements);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_STEPS_VERDICT_H_
