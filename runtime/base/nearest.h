#ifndef WEFT_RUNTIME_BASE_NEAREST_H_
#define WEFT_RUNTIME_BASE_NEAREST_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft {

// Single-character insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int64_t EditDistance(absl::string_view a, absl::string_view b);

// The candidate of least edit distance to `name`, the first of several; for "did you mean" in errors.
// Errors: InvalidArgument if there is no candidate.
std::string NearestName(absl::string_view name, absl::Span<const std::string> candidates);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_NEAREST_H_
