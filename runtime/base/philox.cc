#include "runtime/base/philox.h"

#include <bit>
#include <cmath>

#include "runtime/base/error.h"

namespace weft {
namespace {

// SplitMix64's finaliser: a bijection on 64-bit words in which every input bit flips half the output bits.
uint64_t Mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Natural logarithm of a normal positive double, to a few units in the last place. Not std::log: libm differs
// between machines. Only +, *, / and exact steps, so the bits are the same wherever doubles are IEEE's.
double Log(double x) {
  // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdu;
  const int64_t exponent = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
  // log(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716: the series to s^21 is exact to double.
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double series = 1.0 / 21;
  for (const double term :
       {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3}) {
    series = series * z + term;
  }
  return static_cast<double>(exponent) * 0x1.62e42fefa39efp-1 + 2.0 * (s + s * (z * series));
}

// Horner's rule; coefficients from the highest power down.
template <int n>
double Polynomial(const double (&coefficients)[n], double x) {
  double value = coefficients[0];
  for (int i = 1; i < n; ++i) value = value * x + coefficients[i];
  return value;
}

// Wichura's algorithm AS 241 (PPND16), whose relative error is about 1e-16. Its third range, for
// probabilities below e^-25, cannot occur: the smallest here is 2^-33.
double NormalQuantile(double p) {
  static constexpr double kCentreNum[] = {2509.0809287301226727, 33430.575583588128105, 67265.770927008700853,
                                          45921.953931549871457, 13731.693765509461125, 1971.5909503065514427,
                                          133.14166789178437745, 3.387132872796366608};
  static constexpr double kCentreDen[] = {
      5226.495278852854561,  28729.085735721942674, 39307.89580009271061,  21213.794301586595867,
      5394.1960214247511077, 687.1870074920579083,  42.313330701600911252, 1.0};
  static constexpr double kTailNum[] = {
      7.7454501427834140764e-4, .0227238449892691845833, .24178072517745061177, 1.27045825245236838258,
      3.64784832476320460504,   5.7694972214606914055,   4.6303378461565452959, 1.42343711074968357734};
  static constexpr double kTailDen[] = {
      1.05075007164441684324e-9, 5.475938084995344946e-4, .0151986665636164571966, .14810397642748007459,
      .68976733498510000455,     1.6763848301838038494,   2.05319162663775882187,  1.0};
  const double q = p - 0.5;
  if (q >= -0.425 && q <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * Polynomial(kCentreNum, r) / Polynomial(kCentreDen, r);
  }
  // sqrt is correctly rounded by IEEE 754: the same bits everywhere.
  const double r = std::sqrt(-Log(q < 0 ? p : 1.0 - p)) - 1.6;
  const double tail = Polynomial(kTailNum, r) / Polynomial(kTailDen, r);
  return q < 0 ? -tail : tail;
}

}  // namespace

PhiloxWords Philox4x32(const PhiloxWords& counter, const std::array<uint32_t, 2>& key) {
  PhiloxWords x = counter;
  uint32_t k0 = key[0];
  uint32_t k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * x[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * x[2];
    x = {static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(product0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
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

PhiloxWords RandomWords(const RandomKey& key, uint64_t block) {
  WEFT_REQUIRE(key.step <= 0xffffffffu, "RandomWords: step ", key.step, " is not below 2^32");
  const uint64_t philox_key = Mix(key.seed) ^ key.stream;
  return Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                     static_cast<uint32_t>(key.step), static_cast<uint32_t>(key.stream)},
                    {static_cast<uint32_t>(philox_key), static_cast<uint32_t>(philox_key >> 32)});
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
