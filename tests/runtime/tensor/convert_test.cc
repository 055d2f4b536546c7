#include "runtime/tensor/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "hwy/targets.h"
#include "runtime/tensor/convert_spans.h"

namespace weft {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(ConvertElement, FloatToIntegerTruncatesTowardZero) {
  EXPECT_EQ(ConvertElement<int32_t>(2.9f), 2);
  EXPECT_EQ(ConvertElement<int32_t>(-2.9f), -2);
  EXPECT_EQ(ConvertElement<int64_t>(-0.9), 0);
  EXPECT_EQ(ConvertElement<uint8_t>(BFloat16(254.0f)), 254);
  EXPECT_EQ(ConvertElement<int32_t>(2147483646.5), 2147483646);
  EXPECT_EQ(ConvertElement<int32_t>(-2147483647.5), -2147483647);
}

TEST(ConvertElement, FloatToIntegerSaturatesAndNanIsZero) {
  EXPECT_EQ(ConvertElement<int32_t>(3e9f), std::numeric_limits<int32_t>::max());
  EXPECT_EQ(ConvertElement<int32_t>(-3e9f), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(ConvertElement<int64_t>(kInf), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ConvertElement<int64_t>(-1e300), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(ConvertElement<int64_t>(0x1p63f), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ConvertElement<uint8_t>(-1.0f), 0);
  EXPECT_EQ(ConvertElement<uint8_t>(256.0f), 255);
  EXPECT_EQ(ConvertElement<uint8_t>(Float16(65504.0f)), 255);
  EXPECT_EQ(ConvertElement<int32_t>(kNan), 0);
  EXPECT_EQ(ConvertElement<uint8_t>(BFloat16(static_cast<float>(kNan))), 0);
}

TEST(ConvertElement, AnythingNonZeroIsTrue) {
  EXPECT_TRUE(ConvertElement<bool>(0.25f));
  EXPECT_TRUE(ConvertElement<bool>(kNan));
  EXPECT_TRUE(ConvertElement<bool>(BFloat16(-1.0f)));
  EXPECT_TRUE(ConvertElement<bool>(Float16(0x1p-24f)));
  EXPECT_TRUE(ConvertElement<bool>(int64_t{256}));
  EXPECT_FALSE(ConvertElement<bool>(-0.0));
  EXPECT_FALSE(ConvertElement<bool>(BFloat16(-0.0f)));
  EXPECT_FALSE(ConvertElement<bool>(0));
}

TEST(ConvertElement, IntegersWrap) {
  EXPECT_EQ(ConvertElement<uint8_t>(-1), 255);
  EXPECT_EQ(ConvertElement<uint8_t>(int64_t{257}), 1);
  EXPECT_EQ(ConvertElement<int32_t>((int64_t{1} << 32) + 5), 5);
  EXPECT_EQ(ConvertElement<int64_t>(int32_t{-7}), -7);
  EXPECT_EQ(ConvertElement<int32_t>(true), 1);
}

TEST(ConvertElement, ToFloatRoundsToNearest) {
  EXPECT_EQ(ConvertElement<float>((int64_t{1} << 24) + 1), 0x1p24f);
  EXPECT_EQ(ConvertElement<float>((int64_t{1} << 24) + 3), 0x1p24f + 4);
  EXPECT_EQ(ConvertElement<float>(0.1), 0.1f);
  EXPECT_EQ(ConvertElement<double>(0.1f), static_cast<double>(0.1f));
  EXPECT_EQ(ConvertElement<BFloat16>(257).bits(), BFloat16(256.0f).bits());  // a tie, to even
  EXPECT_EQ(ConvertElement<BFloat16>(Float16(1.5f)).bits(), BFloat16(1.5f).bits());
  EXPECT_EQ(ConvertElement<Float16>(1e6).bits(), Float16(static_cast<float>(kInf)).bits());
  EXPECT_EQ(ConvertElement<Float16>(true).bits(), Float16(1.0f).bits());
  EXPECT_TRUE(std::isnan(ConvertElement<float>(kNan)));
}

template <class Half>
void CheckEveryHalf() {
  std::vector<Half> halves;
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    halves.push_back(Half::FromBits(static_cast<uint16_t>(bits)));
  std::vector<float> floats(halves.size());
  ConvertSpan(halves.data(), floats.data(), static_cast<int64_t>(halves.size()));
  for (size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(static_cast<float>(halves[i])))
        << i;
  }
}

// Every sign, exponent and upper part of a mantissa, with lower parts around the ties of either rounding.
template <class Half>
void CheckRounding() {
  for (const uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
    std::vector<float> floats;
    for (uint32_t high = 0; high < 0x10000; ++high) floats.push_back(std::bit_cast<float>(high << 16 | low));
    std::vector<Half> halves(floats.size());
    ConvertSpan(floats.data(), halves.data(), static_cast<int64_t>(floats.size()));
    for (size_t i = 0; i < floats.size(); ++i)
      ASSERT_EQ(halves[i].bits(), Half(floats[i]).bits()) << i << low;
  }
}

TEST(ConvertSpan, HasTheBitsOfConvertElementAtEveryLevel) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    CheckEveryHalf<BFloat16>();
    CheckEveryHalf<Float16>();
    CheckRounding<BFloat16>();
    CheckRounding<Float16>();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(ConvertSpan, EverySizeStopsAtItsEnd) {
  for (int64_t n : {0, 1, 7, 8, 9, 15, 16, 17, 33}) {
    std::vector<float> floats(n + 1, 2.5f);
    std::vector<BFloat16> halves(n + 1, BFloat16(-1));
    ConvertSpan(floats.data(), halves.data(), n);
    EXPECT_EQ(static_cast<float>(halves[n]), -1) << n;
    std::fill(floats.begin(), floats.end(), -1.0f);
    ConvertSpan(halves.data(), floats.data(), n);
    EXPECT_EQ(floats[n], -1) << n;
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(floats[i], 2.5f) << n;
  }
}

}  // namespace
}  // namespace weft
