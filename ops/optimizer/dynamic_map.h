// Numbers between -1 and 1 that 8 bits choose from: dense near zero.

#ifndef WEFT_OPS_OPTIMIZER_DYNAMIC_MAP_H_
#define WEFT_OPS_OPTIMIZER_DYNAMIC_MAP_H_

#include <algorithm>
#include <array>

namespace weft {

// The dynamic map, in ascending order. Decade k = 0 ... 6, from 10^(k - 7) to 10^(k - 6), is cut into 2^k equal parts, of
// which the middles are values, and their negatives; with 0 and 1 these are 256. The unsigned one has twice the parts, and no
// negatives. A code is the number of a value.
//
// Source: Dettmers et al., "8-bit optimizers via block-wise quantization", arXiv 2110.02861; bitsandbytes' create_dynamic_map.
using DynamicMap = std::array<float, 256>;

constexpr DynamicMap MakeDynamicMap(bool is_signed) {
  DynamicMap map = {};
  int size = 0;
  double decade = 1e-6;
  for (int k = 0; k < 7; ++k) {
    const int parts = is_signed ? 1 << k : 2 << k;
    for (int i = 0; i < parts; ++i) {
      const double middle = 0.1 + 0.9 * (i + 0.5) / parts;
      map[size++] = static_cast<float>(decade * middle);
      if (is_signed) map[size++] = static_cast<float>(-decade * middle);
    }
    decade *= 10;
  }
  map[size++] = 0;
  map[size++] = 1;
  std::sort(map.begin(), map.end());
  return map;
}

// Halfway between the values: threshold i between those of codes i and i + 1. Of the unsigned map the first is 0, so that 0
// alone has its code: a second moment that vanished before the first would leave that divided by eps.
constexpr std::array<float, 255> MakeThresholds(const DynamicMap& map) {
  std::array<float, 255> thresholds = {};
  for (int i = 0; i < 255; ++i) thresholds[i] = 0.5f * (map[i] + map[i + 1]);
  if (map[0] == 0) thresholds[0] = 0;
  return thresholds;
}

// How many thresholds lie below x, which is the code of the nearest value, but for what is above 0 and the unsigned map's 0
// alone is nearest to: that has code 1. 0 for NaN.
constexpr int NearestCode(const float* thresholds, float x) {
  int code = 0;
  for (int half = 128; half > 0; half /= 2) {
    if (code + half <= 255 && x > thresholds[code + half - 1]) code += half;
  }
  return code;
}

}  // namespace weft

#endif  // WEFT_OPS_OPTIMIZER_DYNAMIC_MAP_H_
