// What a step is of: the manifest, and this rank's tensors.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_STEP_CONTENTS_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_STEP_CONTENTS_H_

#include <cstdint>
#include <exception>
#include <vector>

#include "dtensor/checkpoint/folder/manifest.h"
#include "dtensor/checkpoint/state/agreement.h"
#include "dtensor/checkpoint/state/state.h"
#include "dtensor/checkpoint/state/state_table.h"

namespace weft {

struct StepContents {
  Manifest manifest;                      // but for files and refers_to
  std::vector<LocalStateTensor> tensors;  // of this rank
  // Not null: what is wrong with this rank's state, which the others do not know yet. They have taken part in the same rounds.
  std::exception_ptr failure = nullptr;
};

// Every rank calls it alike.
// Cost:   two small all-gathers.
// Errors: as GatherStateTable.
StepContents ContentsOf(int64_t step, int64_t generation, const State& state, Agreement& agreement);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_STEP_CONTENTS_H_
