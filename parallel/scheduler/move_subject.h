// The number by which ranks tell that they move the same parameter, or its gradient.

#ifndef WEFT_PARALLEL_SCHEDULER_MOVE_SUBJECT_H_
#define WEFT_PARALLEL_SCHEDULER_MOVE_SUBJECT_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "runtime/base/philox.h"

namespace weft {

// EachMove's subject for the parameter of that path, which is never 0. Ranks that reach different parameters of one shape, or
// reduce stages in different orders, must not take one for the other.
inline uint32_t MoveSubject(absl::string_view path) { return static_cast<uint32_t>(StreamOf(path)) | 1; }

}  // namespace weft

#endif  // WEFT_PARALLEL_SCHEDULER_MOVE_SUBJECT_H_
