#include "runtime/base/philox.h"

#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/normal_quantile.h"
#include "runtime/base/philox_parts.h"

namespace weft {
namespace {

// SplitMix64's finaliser: a bijection on 64-bit words in which every input bit flips half the output bits.
uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Weft is compiled with -ffp-contract=off, so these stay two roundings.
struct PlainMath {
  static double Mul(double a, double b) { return a * b; }
  static double Add(double a, double b) { return a + b; }
  static double Sqrt(double a) { return std::sqrt(a); }
};

}  // namespace

PhiloxWords Philox4x32(const PhiloxWords& counter, const std::array<uint32_t, 2>& key) {
  return PhiloxOf(counter, key);
}

uint64_t StreamOf(absl::string_view path, uint64_t call_number) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](uint8_t byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  for (const char c : path) add(static_cast<uint8_t>(c));
  for (int shift = 0; shift < 64; shift += 8) add(static_cast<uint8_t>(call_number >> shift));
  return Mix(hash);
}

PhiloxStream StreamParts(const RandomKey& key) {
  WEFT_REQUIRE(key.step <= 0xffffffffu, "RandomWords: step ", key.step, " is not below 2^32");
  const uint64_t philox_key = Mix(key.seed) ^ key.stream;
  return {static_cast<uint32_t>(key.step),
          static_cast<uint32_t>(key.stream),
          {static_cast<uint32_t>(philox_key), static_cast<uint32_t>(philox_key >> 32)}};
}

PhiloxWords RandomWords(const RandomKey& key, uint64_t block) {
  return RandomWordsOf(StreamParts(key), block);
}

float NormalFromWord(uint32_t word) { return NormalQuantile<PlainMath>::FromWord(word); }

float UniformAt(const RandomKey& key, uint64_t index) {
  return UniformFromWord(RandomWords(key, index / 4)[index % 4]);
}

float NormalAt(const RandomKey& key, uint64_t index) {
  return NormalFromWord(RandomWords(key, index / 4)[index % 4]);
}

}  // namespace weft
