#ifndef WEFT_OPS_CPU_CREATION_RANDOM_SPANS_H_
#define WEFT_OPS_CPU_CREATION_RANDOM_SPANS_H_

#include <cstdint>

#include "runtime/base/philox.h"

namespace weft {

// Random words in bulk, and what becomes of them, compiled for every instruction set level and chosen at run
// time. All levels give the bits that runtime/base/philox.h defines for an element, wherever a span starts
// and ends: integers, and floating-point steps that IEEE 754 rounds one way, no fused multiply-adds.

// words[i] = RandomWords(key, (first + i) / 4)[(first + i) % 4], for i in [0, n).
// Errors: InvalidArgument as RandomWords.
void RandomWordSpan(const RandomKey& key, uint64_t first, uint32_t* words, int64_t n);

// y[i] = low + width * UniformFromWord(words[i]).
void UniformSpan(const uint32_t* words, float low, float width, float* y, int64_t n);

// y[i] = mean + stddev * NormalFromWord(words[i]).
void NormalSpan(const uint32_t* words, float mean, float stddev, float* y, int64_t n);

}  // namespace weft

#endif  // WEFT_OPS_CPU_CREATION_RANDOM_SPANS_H_
