#ifndef WEFT_RUNTIME_BASE_CLAMP_TIMEOUT_H_
#define WEFT_RUNTIME_BASE_CLAMP_TIMEOUT_H_

#include <algorithm>
#include <chrono>

namespace weft {

// `timeout` from 0 to a year: what can be added to any clock's present, and compared with what a clock of nanoseconds says.
// milliseconds::max() is neither: it overflows, and "never" becomes "at once".
constexpr std::chrono::milliseconds ClampTimeout(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kYear = std::chrono::hours(24 * 365);
  return std::clamp(timeout, std::chrono::milliseconds(0), kYear);
}

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_CLAMP_TIMEOUT_H_
