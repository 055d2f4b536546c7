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
  // Of a step: the whole ones that have elements in it, ascending.
  std::map<int64_t, std::vector<int64_t>> referred_to_by;

  std::vector<int64_t> ReferredToBy(int64_t step) const;
  // Whether the step has what whole ones refer to, but not all that it refers to itself: DropSteps leaves such steps.
  bool IsKeptForOthers(int64_t step) const;
  // Whether any is neither whole nor kept for others.
  bool HasBroken() const;
};

// Looks at these steps of the folder. If one cannot be read (it has a newer format, say), the error is its problem, and the
// others are looked at all the same.
// Cost: as InspectStep of each; with elements, as VerifyStep.
StepsVerdict InspectSteps(Files& files, const std::string& folder, const std::vector<int64_t>& steps,
                          bool with_elements);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_FOLDER_STEPS_VERDICT_H_
