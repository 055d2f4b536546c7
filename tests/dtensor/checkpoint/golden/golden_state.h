// What the golden checkpoints hold.

#ifndef WEFT_TESTS_DTENSOR_CHECKPOINT_GOLDEN_GOLDEN_STATE_H_
#define WEFT_TESTS_DTENSOR_CHECKPOINT_GOLDEN_GOLDEN_STATE_H_

#include "dtensor/checkpoint/state/state.h"
#include "runtime/launch/world.h"

namespace weft {

// Of two ranks, pp=2: a tensor that both split, one of each stage, one of the second in bf16, a count, a text.
State GoldenState(World& world);

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_CHECKPOINT_GOLDEN_GOLDEN_STATE_H_
