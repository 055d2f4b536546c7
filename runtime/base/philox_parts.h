#ifndef WEFT_RUNTIME_BASE_PHILOX_PARTS_H_
#define WEFT_RUNTIME_BASE_PHILOX_PARTS_H_

#include <array>
#include <cstdint>

#include "runtime/base/random_key.h"

namespace weft {

// What RandomWords and NormalFromWord are made of, for kernels that do the same to many elements at once.
// Whoever uses this must give the same bits: the definition is philox.h's.

// The constant words of a stream's counters, {block low, block high, step, stream}, and Philox's key.
// Errors: InvalidArgument if the step does not fit 32 bits.
struct PhiloxStream {
  uint32_t step = 0;
  uint32_t stream = 0;
  std::array<uint32_t, 2> key = {};
};
PhiloxStream StreamParts(const RandomKey& key);

// A round multiplies words 0 and 2; the key then moves on.
inline constexpr std::array<uint32_t, 2> kPhiloxMultipliers = {0xD2511F53u, 0xCD9E8D57u};
inline constexpr std::array<uint32_t, 2> kPhiloxKeySteps = {0x9E3779B9u, 0xBB67AE85u};
inline constexpr int kPhiloxRounds = 10;

// Philox4x32 itself, for CUDA kernels too.
constexpr PhiloxWords PhiloxOf(const PhiloxWords& counter, const std::array<uint32_t, 2>& key) {
  // Read here, as constants: device code cannot read the host's arrays.
  constexpr uint32_t kMultiplier0 = kPhiloxMultipliers[0];
  constexpr uint32_t kMultiplier1 = kPhiloxMultipliers[1];
  constexpr uint32_t kStep0 = kPhiloxKeySteps[0];
  constexpr uint32_t kStep1 = kPhiloxKeySteps[1];
  PhiloxWords x = counter;
  uint32_t k0 = key[0];
  uint32_t k1 = key[1];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * x[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * x[2];
    x = {static_cast<uint32_t>(product1 >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(product0)};
    k0 += kStep0;
    k1 += kStep1;
  }
  return x;
}

// RandomWords of the stream's parts.
constexpr PhiloxWords RandomWordsOf(const PhiloxStream& parts, uint64_t block) {
  return PhiloxOf(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), parts.step, parts.stream},
      parts.key);
}

// AS 241: with q = p - 1/2, for |q| <= kCentre q * num(r) / den(r) at r = kCentreShift - q^2; beyond, the
// same of r = sqrt(-log(min(p, 1 - p))) - kTailShift. Highest powers first.
struct NormalQuantileParts {
  static constexpr double kCentre = 0.425;
  static constexpr double kCentreShift = 0.180625;
  static constexpr double kTailShift = 1.6;
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
};

// log(m 2^e), m in [sqrt(1/2), sqrt(2)) = e log 2 + 2 (s + s (z series(z))), s = (m - 1) / (m + 1), z = s^2.
// Highest powers first.
struct LogParts {
  static constexpr uint64_t kSqrtHalfBits = 0x3fe6a09e667f3bcdu;
  static constexpr double kLogTwo = 0x1.62e42fefa39efp-1;
  static constexpr double kSeries[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                                       1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
};

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_PHILOX_PARTS_H_
