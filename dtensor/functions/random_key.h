#ifndef WEFT_DTENSOR_FUNCTIONS_RANDOM_KEY_H_
#define WEFT_DTENSOR_FUNCTIONS_RANDOM_KEY_H_

#include "dtensor/context/rank_state.h"
#include "runtime/base/philox.h"

namespace weft {

// The key of the next random call of the current module: of its path and how often it has asked in this
// forward.
RandomKey NextRandomKey(RankState& state);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_RANDOM_KEY_H_
