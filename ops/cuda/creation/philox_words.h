#ifndef WEFT_OPS_CUDA_CREATION_PHILOX_WORDS_H_
#define WEFT_OPS_CUDA_CREATION_PHILOX_WORDS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/base/philox_parts.h"

namespace weft {

// The random word of element `element` of a stream: word element % 4 of RandomWords(key, element / 4).
inline __device__ uint32_t CudaPhiloxWord(const PhiloxStream& stream, uint64_t element) {
  constexpr uint32_t kMultiplier0 = kPhiloxMultipliers[0];
  constexpr uint32_t kMultiplier1 = kPhiloxMultipliers[1];
  constexpr uint32_t kStep0 = kPhiloxKeySteps[0];
  constexpr uint32_t kStep1 = kPhiloxKeySteps[1];
  const uint64_t block = element / 4;
  uint32_t x0 = static_cast<uint32_t>(block);
  uint32_t x1 = static_cast<uint32_t>(block >> 32);
  uint32_t x2 = stream.step;
  uint32_t x3 = stream.stream;
  uint32_t key0 = stream.key[0];
  uint32_t key1 = stream.key[1];
#pragma unroll
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint32_t high0 = __umulhi(kMultiplier0, x0);
    const uint32_t high1 = __umulhi(kMultiplier1, x2);
    const uint32_t low0 = kMultiplier0 * x0;
    const uint32_t low1 = kMultiplier1 * x2;
    x0 = high1 ^ x1 ^ key0;
    x1 = low1;
    x2 = high0 ^ x3 ^ key1;
    x3 = low0;
    key0 += kStep0;
    key1 += kStep1;
  }
  const uint32_t lane = static_cast<uint32_t>(element % 4);
  return lane < 2 ? (lane == 0 ? x0 : x1) : (lane == 2 ? x2 : x3);
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_CREATION_PHILOX_WORDS_H_
