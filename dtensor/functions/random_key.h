#ifndef WEFT_DTENSOR_FUNCTIONS_RANDOM_KEY_H_
#define WEFT_DTENSOR_FUNCTIONS_RANDOM_KEY_H_

#include "absl/strings/string_view.h"
#include "dtensor/context/rank_state.h"
#include "runtime/base/philox.h"

namespace weft {

// The key of the next random call of the current module: of its path and how often it has asked in this
// forward. Outside of modules' calls: of a stream that is no module's, and how many draws there have been in this step.
RandomKey NextRandomKey(RankState& state);

// The key of the stream of that name, in this step.
RandomKey NamedRandomKey(const RankState& state, absl::string_view name);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_RANDOM_KEY_H_
