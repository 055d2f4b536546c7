#include "dtensor/functions/random_key.h"

namespace weft {

RandomKey NextRandomKey(RankState& state) {
  return {.seed = state.seed(),
          .stream = StreamOf(state.PathName(state.path_id()), state.NextCallNumber()),
          .step = state.step()};
}

}  // namespace weft
