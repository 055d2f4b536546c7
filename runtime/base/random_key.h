#ifndef WEFT_RUNTIME_BASE_RANDOM_KEY_H_
#define WEFT_RUNTIME_BASE_RANDOM_KEY_H_

#include <array>
#include <cstdint>

namespace weft {

// Four random words, and a counter of Philox-4x32 (runtime/base/philox.h).
using PhiloxWords = std::array<uint32_t, 4>;

// Names one stream of random values. Every value that Weft draws is a pure function of (seed, stream, step,
// 64-bit global element index), so it is the same on every layout, device and number of ranks.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;  // StreamOf a parameter's path, or of a module's path and call number
  uint64_t step = 0;    // below 2^32

  bool operator==(const RandomKey&) const = default;
};

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_RANDOM_KEY_H_
