#ifndef WEFT_DTENSOR_CONTEXT_RANDOM_SNAPSHOT_H_
#define WEFT_DTENSOR_CONTEXT_RANDOM_SNAPSHOT_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace weft {

// Where a rank stands in its random draws: all that a draw depends on besides the seed and the layout. A value;
// `==` compares all of it.
struct RandomSnapshot {
  uint64_t step = 0;
  int64_t batch_offset = 0;                              // of the microbatch (BatchOffsetGuard)
  uint64_t fold = 0;                                     // the number of a FoldInGuard
  int path_id = 0;                                       // the module path
  bool module_training = true;                           // of that module (Module::Train, Module::Eval)
  absl::flat_hash_map<int, uint64_t> call_numbers = {};  // by module path; one that has not drawn is absent
  uint64_t draws_outside = 0;                            // of modules' calls
  bool in_root_call = false;                             // a root module's call stands (RootCallScope)

  bool operator==(const RandomSnapshot&) const = default;
};

}  // namespace weft

#endif  // WEFT_DTENSOR_CONTEXT_RANDOM_SNAPSHOT_H_
