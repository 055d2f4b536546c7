#ifndef WEFT_DTENSOR_CONTEXT_FOLD_IN_GUARD_H_
#define WEFT_DTENSOR_CONTEXT_FOLD_IN_GUARD_H_

#include <cstdint>

#include "dtensor/context/rank_state.h"

namespace weft {

// Folds `number` into the keys of the random draws that are made while it lives: they are others than without it, or under
// another number. For a model that is called several times in one step, whose calls would draw the same masks:
//   for (int i = 0; i < 20; ++i) {
//     const FoldInGuard fold(state, i);
//     samples.push_back(net(x));
//   }
// It is for all draws of modules, outside of them and of named streams (dtensor/functions/creation.h), but not for initial
// values. What is recomputed draws as in forward. 0: as without one. A guard within another states its own number. Every
// rank holds the same.
// Source: the semantics of jax.random.fold_in.
class FoldInGuard : ScopedValue<uint64_t> {
 public:
  FoldInGuard(RankState& state, uint64_t number) : ScopedValue(state.random_fold_, number) {}
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_FOLD_IN_GUARD_H_
