#ifndef WEFT_DTENSOR_FUNCTIONS_DROPOUT_H_
#define WEFT_DTENSOR_FUNCTIONS_DROPOUT_H_

#include "dtensor/dtensor.h"

// Dropout, with the same bits on every layout.
namespace weft {

// Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate), while the rank state is
// training; the bits depend on the seed, the step, the module path, how many times the module has asked in
// this forward, and where the element lies in the global batch (BatchOffsetGuard in
// dtensor/context/rank_state.h). So a model that is called twice in one step drops the same elements both times, unless a
// FoldInGuard (dtensor/context/fold_in_guard.h) tells the calls apart; and so do all steps of a loop that sets none
// (RankState::set_step). Outside of modules' calls: as the random functions of dtensor/functions/creation.h.
//
// Layout: every dim may be split. A Partial sum or average stays one, of which each rank drops the same elements of its
//         term; another Partial is reduced first.
// Cost:   no communication but that. Nothing is saved: backward makes the bits again.
// Errors: InvalidArgument for a rate outside [0, 1) while training, or an x that is not floating.
DTensor Dropout(const DTensor& x, double rate);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_DROPOUT_H_
