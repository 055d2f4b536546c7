// What becomes of a step whose elements are found broken when it is loaded.

#ifndef WEFT_DTENSOR_CHECKPOINT_STATE_BROKEN_STEP_H_
#define WEFT_DTENSOR_CHECKPOINT_STATE_BROKEN_STEP_H_

#include <cstdint>
#include <string>

#include "dtensor/checkpoint/files/files.h"
#include "dtensor/checkpoint/state/agreement.h"

namespace weft {

// Sets the step aside, so that the next start takes an older one. Where what is broken lies in another step's file, all steps
// that have it go with it: otherwise each of them would cost a start of its own. A step that has been written anew since has
// other elements there, and stays. Every rank calls it alike.
//
// Returns what has been done, for people: which file is broken, if it is another step's, and where the steps are now.
// Cost:   a round of Agreement; one read, by all ranks together, of the elements that lie in other steps' files.
// Errors: those of the agreement. If a step cannot be renamed, the text says so.
std::string SetBrokenStepAside(Agreement& agreement, Files& files, const std::string& folder, int64_t step);

}  // namespace weft

#endif  // WEFT_DTENSOR_CHECKPOINT_STATE_BROKEN_STEP_H_
