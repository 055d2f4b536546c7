#include "runtime/base/philox.h"

#include <bit>
#include <cmath>

#include "runtime/base/error.h"
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

// Horner's rule; coefficients from the highest power down.
template <int n>
double Polynomial(const double (&coefficients)[n], double x) {
  double value = coefficients[0];
  for (int i = 1; i < n; ++i) value = value * x + coefficients[i];
  return value;
}

// Natural logarithm of a normal positive double, to a few units in the last place. Not std::log: libm differs
// between machines. Only +, *, / and exact steps, so the bits are the same wherever doubles are IEEE's.
double Log(double x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const int64_t exponent = static_cast<int64_t>(bits - LogParts::kSqrtHalfBits) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  // log(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716: the series to s^21 is exact to double.
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  const double series = Polynomial(LogParts::kSeries, z);
  return static_cast<double>(exponent) * LogParts::kLogTwo + 2.0 * (s + s * (z * series));
}

// Wichura's algorithm AS 241 (PPND16), whose relative error is about 1e-16. Its third range, for
// probabilities below e^-25, cannot occur: the smallest here is 2^-33.
double NormalQuantile(double p) {
  using Parts = NormalQuantileParts;
  const double q = p - 0.5;
  if (q >= -Parts::kCentre && q <= Parts::kCentre) {
    const double r = Parts::kCentreShift - q * q;
    return q * Polynomial(Parts::kCentreNum, r) / Polynomial(Parts::kCentreDen, r);
  }
  // sqrt is correctly rounded by IEEE 754: the same bits everywhere.
  const double r = std::sqrt(-Log(q < 0 ? p : 1.0 - p)) - Parts::kTailShift;
  const double tail = Polynomial(Parts::kTailNum, r) / Polynomial(Parts::kTailDen, r);
  return q < 0 ? -tail : tail;
}

}  // namespace

PhiloxWords Philox4x32(const PhiloxWords& counter, const std::array<uint32_t, 2>& key) {
  PhiloxWords x = counter;
  uint32_t k0 = key[0];
  uint32_t k1 = key[1];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultipliers[0]} * x[0];
    const uint64_t product1 = uint64_t{kPhiloxMultipliers[1]} * x[2];
    x = {static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(product0)};
    k0 += kPhiloxKeySteps[0];
    k1 += kPhiloxKeySteps[1];
  }
  return x;
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
  const PhiloxStream parts = StreamParts(key);
  return Philox4x32(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), parts.step, parts.stream},
      parts.key);
}

float NormalFromWord(uint32_t word) {
  // (word + 1/2) * 2^-32: exact, inside (0, 1), symmetric about 1/2.
  return static_cast<float>(NormalQuantile((static_cast<double>(word) + 0.5) * 0x1p-32));
}

float UniformAt(const RandomKey& key, uint64_t index) {
  return UniformFromWord(RandomWords(key, index / 4)[index % 4]);
}

float NormalAt(const RandomKey& key, uint64_t index) {
  return NormalFromWord(RandomWords(key, index / 4)[index % 4]);
}

}  // namespace weft
