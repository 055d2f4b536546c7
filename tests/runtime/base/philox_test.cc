#include "runtime/base/philox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "runtime/base/error.h"

namespace weft {
namespace {

// Random123's kat_vectors, "philox4x32 10".
TEST(Philox, MatchesPublishedKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The documented layout of counter and key. SplitMix64's first output from state 0 is published:
// 0xe220a8397b1dcdaf.
TEST(Philox, CounterAndKeyAreAsDocumented) {
  EXPECT_EQ(RandomWords({.seed = 0}, 0), Philox4x32({0, 0, 0, 0}, {0x7b1dcdaf, 0xe220a839}));
  const RandomKey key = {.seed = 0, .stream = 0x1122334455667788, .step = 9};
  EXPECT_EQ(RandomWords(key, 0xaabbccdd00112233),
            Philox4x32({0x00112233, 0xaabbccdd, 9, 0x55667788},
                       {0x7b1dcdaf ^ 0x55667788, 0xe220a839 ^ 0x11223344}));
}

TEST(Philox, EveryBitOfKeyAndIndexMatters) {
  std::set<PhiloxWords> seen = {RandomWords({}, 0)};
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t one = uint64_t{1} << bit;
    seen.insert(RandomWords({.seed = one}, 0));
    seen.insert(RandomWords({.stream = one}, 0));
    seen.insert(RandomWords({}, one));
    if (bit < 32) seen.insert(RandomWords({.step = one}, 0));
  }
  EXPECT_EQ(seen.size(), 1 + 3 * 64 + 32);
}

TEST(Philox, RefusesAStepBeyond32Bits) {
  try {
    RandomWords({.step = uint64_t{1} << 32}, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), ::testing::HasSubstr("step 4294967296 is not below 2^32"));
  }
}

TEST(Philox, ElementsAreTheWordsOfTheirBlock) {
  const RandomKey key = {.seed = 3, .stream = 5, .step = 7};
  for (uint64_t block : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 33, ~uint64_t{0} / 4}) {
    const PhiloxWords words = RandomWords(key, block);
    for (uint64_t i = 0; i < 4; ++i) {
      EXPECT_EQ(UniformAt(key, 4 * block + i), UniformFromWord(words[i]));
      EXPECT_EQ(NormalAt(key, 4 * block + i), NormalFromWord(words[i]));
    }
  }
}

TEST(Uniform, IsExactAndBelowOne) {
  EXPECT_EQ(UniformFromWord(0), 0.0f);
  EXPECT_EQ(UniformFromWord(255), 0.0f);
  EXPECT_EQ(UniformFromWord(256), 0x1p-24f);
  EXPECT_EQ(UniformFromWord(0x80000000u), 0.5f);
  EXPECT_EQ(UniformFromWord(0xffffffffu), 1.0f - 0x1p-24f);
}

// The quantile of p < 1/2 by bisection of the C library's error function, in long double.
long double Quantile(long double p) {
  long double low = -8;
  long double high = 0;
  for (int i = 0; i < 80; ++i) {
    const long double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0L)) / 2 < p ? low : high) = middle;
  }
  return low;
}

void ExpectNearQuantile(uint32_t word) {
  const long double p = (word + 0.5L) * 0x1p-32L;
  const long double expected = p < 0.5L ? Quantile(p) : -Quantile(1 - p);
  const float magnitude = std::abs(static_cast<float>(expected));
  const float unit = std::nextafter(magnitude, 100.0f) - magnitude;
  ASSERT_LE(std::abs(static_cast<long double>(NormalFromWord(word)) - expected), 0.501L * unit) << word;
}

TEST(Normal, IsTheQuantileRoundedToFloat) {
  for (uint64_t word = 0; word < (uint64_t{1} << 32); word += 429'497) ExpectNearQuantile(word);
  // The ends, the centre, and where the two rational functions meet (p = 0.075 and 0.925).
  const uint32_t low_seam = static_cast<uint32_t>(0.075 * 0x1p32);
  for (uint32_t i = 0; i < 300; ++i) {
    for (uint32_t word : {i, ~i, (1u << 31) + i, (1u << 31) - i, low_seam - 150 + i, ~(low_seam - 150 + i)}) {
      ExpectNearQuantile(word);
    }
  }
}

TEST(Normal, IsOddIncreasingAndBounded) {
  EXPECT_GT(NormalFromWord(0), -6.338f);
  EXPECT_LT(NormalFromWord(0), -6.337f);
  float last = -10.0f;
  for (uint64_t word = 0; word < (uint64_t{1} << 32); word += 40'009) {
    const float value = NormalFromWord(word);
    ASSERT_GE(value, last);
    ASSERT_EQ(NormalFromWord(~static_cast<uint32_t>(word)), -value);
    last = value;
  }
}

// FNV-1a over the bits of the first million values: the contract that results repeat on every machine and in
// every later version. A change of these numbers changes every model that anyone has trained.
template <class ValueAt>
uint64_t GoldenHash(const ValueAt& value_at) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (uint64_t i = 0; i < 1'000'000; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(value_at(i));
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((bits >> shift) & 0xff)) * 0x100000001b3u;
  }
  return hash;
}

TEST(Golden, MillionValues) {
  const RandomKey key = {.seed = 1234, .stream = StreamOf("blocks.0.attn.qkv.weight"), .step = 5};
  EXPECT_EQ(GoldenHash([&](uint64_t i) { return UniformAt(key, i); }), 0xa73d0f84d3027efau);
  EXPECT_EQ(GoldenHash([&](uint64_t i) { return NormalAt(key, i); }), 0x631a111fa363d95eu);
}

// Computed by another program (Python) from the definition: FNV-1a of the path and of 8 little-endian bytes
// of the number, then SplitMix64's finaliser.
TEST(Golden, Streams) {
  EXPECT_EQ(StreamOf(""), 0x5ba314b8cfda3b6bu);
  EXPECT_EQ(StreamOf("a"), 0x4ec36ac3a3a4d39eu);
  EXPECT_EQ(StreamOf("blocks.0.attn.qkv.weight", 3), 0xef9cdc0e5edddae3u);
}

TEST(Stream, PathsAndNumbersDiffer) {
  std::set<uint64_t> streams;
  for (const char* path : {"", "a", "b", "ab", "a.b", "blocks.0", "blocks.1", "blocks.10"}) {
    for (uint64_t number : {uint64_t{0}, uint64_t{1}, uint64_t{256}, uint64_t{1} << 63}) {
      streams.insert(StreamOf(path, number));
    }
  }
  EXPECT_EQ(streams.size(), 8 * 4);
}

// Kolmogorov's statistic of `values` (of a million), which exceeds 1.95 once in a thousand samples.
template <class Cdf>
double Kolmogorov(std::vector<float> values, const Cdf& cdf) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  double largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double expected = cdf(values[i]);
    largest = std::max({largest, std::abs(expected - i / n), std::abs((i + 1) / n - expected)});
  }
  return largest * std::sqrt(n);
}

struct Moments {
  double mean = 0;
  double variance = 0;
};
Moments MomentsOf(const std::vector<float>& values) {
  Moments moments;
  for (float value : values) moments.mean += value / values.size();
  for (float value : values)
    moments.variance += (value - moments.mean) * (value - moments.mean) / values.size();
  return moments;
}

TEST(Distribution, UniformAndNormal) {
  constexpr int kCount = 1'000'000;
  const RandomKey key = {.seed = 42, .stream = StreamOf("x"), .step = 1};
  std::vector<float> uniform(kCount);
  std::vector<float> normal(kCount);
  for (int i = 0; i < kCount; ++i) {
    uniform[i] = UniformAt(key, i);
    normal[i] = NormalAt(key, i);
  }
  // Four standard errors each.
  EXPECT_NEAR(MomentsOf(uniform).mean, 0.5, 4 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(MomentsOf(uniform).variance, 1.0 / 12, 4 * std::sqrt(1.0 / 180 / kCount));
  EXPECT_NEAR(MomentsOf(normal).mean, 0.0, 4 * std::sqrt(1.0 / kCount));
  EXPECT_NEAR(MomentsOf(normal).variance, 1.0, 4 * std::sqrt(2.0 / kCount));
  EXPECT_LT(Kolmogorov(uniform, [](double x) { return x; }), 1.95);
  EXPECT_LT(Kolmogorov(normal, [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }), 1.95);
}

// Neighbouring streams, steps and elements are uncorrelated: each within four standard errors of zero.
TEST(Distribution, NeighboursAreUncorrelated) {
  constexpr int kCount = 100'000;
  const RandomKey key = {.seed = 1, .stream = 2, .step = 3};
  double streams = 0;
  double steps = 0;
  double seeds = 0;
  double elements = 0;
  for (int i = 0; i < kCount; ++i) {
    const double value = NormalAt(key, i);
    streams += value * NormalAt({.seed = 1, .stream = 3, .step = 3}, i) / kCount;
    steps += value * NormalAt({.seed = 1, .stream = 2, .step = 4}, i) / kCount;
    seeds += value * NormalAt({.seed = 2, .stream = 2, .step = 3}, i) / kCount;
    elements += value * NormalAt(key, i + 1) / kCount;
  }
  const double bound = 4 / std::sqrt(kCount);
  for (double correlation : {streams, steps, seeds, elements}) EXPECT_LT(std::abs(correlation), bound);
}

}  // namespace
}  // namespace weft
