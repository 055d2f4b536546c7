#include "runtime/base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace weft {
namespace {

// A 16-bit format by its definition: one sign bit, `exponent_bits`, the rest mantissa; subnormals,
// infinities, NaN.
struct Format {
  int mantissa_bits;
  int bias;
};
constexpr Format kHalf = {10, 15};
constexpr Format kBrain = {7, 127};

int MaxExponent(const Format& format) { return 2 * format.bias + 1; }

// The value of a pattern, from the definition alone.
double Decode(const Format& format, uint32_t bits) {
  const double sign = bits & 0x8000u ? -1.0 : 1.0;
  const int exponent = static_cast<int>((bits & 0x7fffu) >> format.mantissa_bits);
  const int mantissa = static_cast<int>(bits & ((1u << format.mantissa_bits) - 1));
  if (exponent == MaxExponent(format)) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  }
  const int unit = (exponent == 0 ? 1 : exponent) - format.bias - format.mantissa_bits;
  const int hidden = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  return sign * std::ldexp(hidden + mantissa, unit);
}

// Round to nearest, ties to even: quantise by nearbyint at the value's own unit.
double RoundTo(const Format& format, float value) {
  if (std::isnan(value) || std::isinf(value) || value == 0) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // value = f * 2^exponent, f in [1/2, 1)
  const int unit = std::max(exponent - 1, 1 - format.bias) - format.mantissa_bits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(value), -unit)), unit);
  const double limit = std::ldexp(1.0, format.bias + 1);
  return std::abs(rounded) >= limit ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
}

template <class T>
void ExpectSame(double expected, T actual, float input) {
  const double value = static_cast<double>(actual);
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(value)) << input;
  } else {
    ASSERT_EQ(expected, value) << input;
    ASSERT_EQ(std::signbit(expected), std::signbit(value)) << input;
  }
}

template <class T>
class Float16Test : public ::testing::Test {};
using Types = ::testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(Float16Test, Types);

template <class T>
constexpr Format kFormat = std::is_same_v<T, Float16> ? kHalf : kBrain;

TYPED_TEST(Float16Test, EveryPatternDecodesAndRoundTrips) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TypeParam value = TypeParam::FromBits(static_cast<uint16_t>(bits));
    ExpectSame(Decode(kFormat<TypeParam>, bits), static_cast<float>(value), static_cast<float>(value));
    const TypeParam back(static_cast<float>(value));
    if (std::isnan(static_cast<float>(value))) {
      ASSERT_TRUE(std::isnan(static_cast<float>(back)));
    } else {
      ASSERT_EQ(back.bits(), bits);
    }
  }
}

// Every midpoint between neighbours, and the floats next to it: where rounding can go wrong.
TYPED_TEST(Float16Test, RoundsMidpointsToEven) {
  const Format format = kFormat<TypeParam>;
  const float infinity = std::numeric_limits<float>::infinity();
  for (uint32_t bits = 0; bits < (static_cast<uint32_t>(MaxExponent(format)) << format.mantissa_bits);
       ++bits) {
    // The neighbour above the largest finite value is 2^(bias + 1), which is where infinity begins.
    const double above =
        std::isinf(Decode(format, bits + 1)) ? std::ldexp(1.0, format.bias + 1) : Decode(format, bits + 1);
    const float middle = static_cast<float>((Decode(format, bits) + above) / 2);
    for (const float value : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, infinity)}) {
      ExpectSame(RoundTo(format, value), TypeParam(value), value);
      ExpectSame(RoundTo(format, -value), TypeParam(-value), -value);
    }
  }
}

TYPED_TEST(Float16Test, RoundsRandomFloats) {
  std::mt19937 random(17);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    ExpectSame(RoundTo(kFormat<TypeParam>, value), TypeParam(value), value);
  }
}

TEST(Float16, KnownValues) {
  EXPECT_EQ(Float16(1.0f).bits(), 0x3c00);
  EXPECT_EQ(Float16(65504.0f).bits(), 0x7bff);
  EXPECT_EQ(Float16(65520.0f).bits(), 0x7c00);
  EXPECT_EQ(Float16(0x1p-24f).bits(), 0x0001);
  EXPECT_EQ(Float16(-0.0f).bits(), 0x8000);
  EXPECT_EQ(BFloat16(1.0f).bits(), 0x3f80);
  EXPECT_EQ(BFloat16(3.14159265f).bits(), 0x4049);
  EXPECT_EQ(Float16().bits(), 0);
  EXPECT_EQ(BFloat16().bits(), 0);
}

// A NaN whose payload lies in the dropped bits alone must not become infinity.
TEST(Float16, NanWithLowPayloadStaysNan) {
  for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(Float16(std::bit_cast<float>(bits)))));
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(bits)))));
  }
}

}  // namespace
}  // namespace weft
