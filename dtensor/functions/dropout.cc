#include "dtensor/functions/dropout.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/random_key.h"
#include "ops/creation/random.h"

namespace weft {

DTensor Dropout(const DTensor& x, double rate) {
  RankState& state = x.context()->state();
  if (rate == 0 || !state.training()) return x;
  return Call(kDropout, {x}, {},
              {.key = NextRandomKey(state), .rate = rate, .batch_offset = state.batch_offset()});
}

}  // namespace weft
