#ifndef WEFT_RUNTIME_BASE_NORMAL_QUANTILE_H_
#define WEFT_RUNTIME_BASE_NORMAL_QUANTILE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "runtime/base/philox_parts.h"

namespace weft {

// The inverse normal distribution of NormalFromWord, one element at a time. Its bits are the same on every
// machine because nothing is done but +, -, *, / and sqrt, each correctly rounded. A compiler that joins
// products and sums, as nvcc does, would change them: so Math says how to multiply and add,
//   static double Mul(double a, double b), Add(double a, double b), Sqrt(double a);
// CUDA kernels call these too.
template <class Math>
struct NormalQuantile {
  static constexpr float FromWord(uint32_t word) {
    // (word + 1/2) * 2^-32: exact, inside (0, 1), symmetric about 1/2.
    return static_cast<float>(Of((static_cast<double>(word) + 0.5) * 0x1p-32));
  }

  // Wichura's algorithm AS 241 (PPND16), whose relative error is about 1e-16. Its third range, for
  // probabilities below e^-25, cannot occur: the smallest here is 2^-33.
  static constexpr double Of(double p) {
    using Parts = NormalQuantileParts;
    const double q = p - 0.5;
    if (q >= -Parts::kCentre && q <= Parts::kCentre) {
      const double r = Math::Add(Parts::kCentreShift, -Math::Mul(q, q));
      return Math::Mul(q, Polynomial<Parts::kCentreNum>(r)) / Polynomial<Parts::kCentreDen>(r);
    }
    // sqrt is correctly rounded by IEEE 754: the same bits everywhere.
    const double r = Math::Sqrt(-Log(q < 0 ? p : 1.0 - p)) - Parts::kTailShift;
    const double tail = Polynomial<Parts::kTailNum>(r) / Polynomial<Parts::kTailDen>(r);
    return q < 0 ? -tail : tail;
  }

  // Natural logarithm of a normal positive double, to a few units in the last place. Not std::log: libm
  // differs between machines.
  static constexpr double Log(double x) {
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)).
    const uint64_t bits = std::bit_cast<uint64_t>(x);
    const int64_t exponent = static_cast<int64_t>(bits - LogParts::kSqrtHalfBits) >> 52;
    const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(exponent) << 52));
    // log(m) = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716: the series to s^21 is exact to double.
    const double s = (m - 1.0) / (m + 1.0);
    const double z = Math::Mul(s, s);
    const double series = Polynomial<LogParts::kSeries>(z);
    const double mantissa = Math::Add(s, Math::Mul(s, Math::Mul(z, series)));
    return Math::Add(Math::Mul(static_cast<double>(exponent), LogParts::kLogTwo), 2.0 * mantissa);
  }

 private:
  // Horner's rule; coefficients from the highest power down. They are constants of the code, since device
  // code cannot read the host's arrays.
  template <const auto& kCoefficients>
  static constexpr double Polynomial(double x) {
    return [x]<size_t... kIndex>(std::index_sequence<kIndex...>) {
      double value = 0;
      ((value = kIndex == 0 ? Coefficient<kCoefficients, kIndex>()
                            : Math::Add(Math::Mul(value, x), Coefficient<kCoefficients, kIndex>())),
       ...);
      return value;
    }
    (std::make_index_sequence<std::size(kCoefficients)>());
  }

  template <const auto& kCoefficients, size_t kIndex>
  static constexpr double Coefficient() {
    constexpr double kValue = kCoefficients[kIndex];
    return kValue;
  }
};

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_NORMAL_QUANTILE_H_
