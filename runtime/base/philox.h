#ifndef WEFT_RUNTIME_BASE_PHILOX_H_
#define WEFT_RUNTIME_BASE_PHILOX_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "runtime/base/random_key.h"

namespace weft {

// Philox-4x32-10: a keyed bijection on 128-bit counters whose outputs pass as independent random words.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; checked against its
//         published known-answer vectors.
PhiloxWords Philox4x32(const PhiloxWords& counter, const std::array<uint32_t, 2>& key);

// A stable 64-bit hash of a path and a number (FNV-1a, then a finaliser): part of the golden random values.
uint64_t StreamOf(absl::string_view path, uint64_t call_number = 0);

// The four random words of the elements [4 * block, 4 * block + 4) of the stream.
//
// Philox's counter is {block low, block high, step, stream low}, its key SplitMix64(seed) xor stream: every
// bit of seed, stream, step and index matters. Part of the golden random values.
// Errors: InvalidArgument if the step does not fit 32 bits.
PhiloxWords RandomWords(const RandomKey& key, uint64_t block);

// Uniform in [0, 1): the top 24 bits of `word`, scaled. Exact.
constexpr float UniformFromWord(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Standard normal: the inverse normal distribution at the centre of the word's cell, (word + 1/2) / 2^32, by
// Weft's own fixed polynomials (no libm), so that every machine agrees bitwise. Within 0.501 units in the
// last place of the exact quantile; odd (the word's complement gives the negative); |result| < 6.338. Source:
// Wichura, algorithm AS 241, Applied Statistics 37 (1988).
float NormalFromWord(uint32_t word);

// The value of element `index` (64-bit, global) of the stream.
float UniformAt(const RandomKey& key, uint64_t index);
float NormalAt(const RandomKey& key, uint64_t index);

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_PHILOX_H_
