// What the learning rate of train_gpt falls to where no flag says it.

#ifndef WEFT_EXAMPLES_GPT_RATE_FLOOR_H_
#define WEFT_EXAMPLES_GPT_RATE_FLOOR_H_

#include <algorithm>

namespace weft {

// For a largest rate of `peak`.
inline double RateFloor(double peak) { return std::min(1e-4, peak / 10); }

}  // namespace weft

#endif  // WEFT_EXAMPLES_GPT_RATE_FLOOR_H_
