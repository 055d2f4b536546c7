// Functions over arrays that are compiled for every instruction set level: each level that this machine runs.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "gtest/gtest.h"
#include "ops/cpu/creation/dropout_span.h"
#include "ops/cpu/creation/random_spans.h"
#include "ops/cpu/spans/float_spans.h"
#include "ops/cpu/spans/sum_elements.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "tests/message_of.h"
#include "tests/ops/cpu/each_level.h"

namespace weft {
namespace {

constexpr RandomKey kKey = {.seed = 7, .stream = 0x123456789abcdef, .step = 3};

TEST(RandomSpans, WordsAreThoseOfTheDefinition) {
  ForEachLevel([] {
    // Starts inside a block of four; runs across the carry of the block number's low word.
    for (const uint64_t first :
         {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{77}, (uint64_t{1} << 34) - 70,
          (uint64_t{1} << 34) - 3, (uint64_t{5} << 40) + 2}) {
      for (const int64_t n : {0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 129, 513}) {
        std::vector<uint32_t> words(n + 1, 0xdead);
        RandomWordSpan(kKey, first, words.data(), n);
        for (int64_t i = 0; i < n; ++i) {
          const uint64_t element = first + static_cast<uint64_t>(i);
          ASSERT_EQ(words[i], RandomWords(kKey, element / 4)[element % 4])
              << first << " + " << i << " of " << n;
        }
        ASSERT_EQ(words[n], 0xdead) << first << " " << n;
      }
    }
  });
}

TEST(RandomSpans, LateStepsAreRefused) {
  uint32_t words[8];
  EXPECT_EQ(MessageOf([&] { RandomWordSpan({.step = uint64_t{1} << 32}, 0, words, 8); }),
            "RandomWords: step 4294967296 is not below 2^32");
}

// Words where something changes: the ends, the middle, and the borders of the quantile's tails.
std::vector<uint32_t> Words() {
  std::vector<uint32_t> words(1200);
  RandomWordSpan(kKey, 5, words.data(), static_cast<int64_t>(words.size()));
  const uint32_t low = static_cast<uint32_t>(0.075 * 0x1p32), high = static_cast<uint32_t>(0.925 * 0x1p32);
  for (const uint32_t centre : {0u, 1u << 31, low, high}) {
    for (uint32_t i = 0; i < 40; ++i) words.push_back(centre - 20 + i);
  }
  return words;
}

TEST(RandomSpans, ValuesHaveTheBitsOfTheDefinition) {
  const std::vector<uint32_t> words = Words();
  ForEachLevel([&] {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{17}, int64_t{511}, int64_t{513},
                            static_cast<int64_t>(words.size())}) {
      std::vector<float> uniform(n + 1, 99), normal(n + 1, 99);
      UniformSpan(words.data(), -2.5f, 3.7f, uniform.data(), n);
      NormalSpan(words.data(), 0.3f, 1.7f, normal.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(uniform[i], -2.5f + 3.7f * UniformFromWord(words[i])) << words[i];
        ASSERT_EQ(normal[i], 0.3f + 1.7f * NormalFromWord(words[i])) << words[i];
      }
      EXPECT_EQ(uniform[n] + normal[n], 2 * 99);
    }
  });
}

template <class S>
void ExpectDropped(uint64_t first, int64_t n) {
  std::vector<S> x(n), y(n + 1, S(99.0f));
  for (int64_t i = 0; i < n; ++i) x[i] = S(static_cast<float>(i) - 70.25f);
  DropoutSpan(kKey, first, x.data(), 0x600000, 1.6f, y.data(), n);
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t element = first + static_cast<uint64_t>(i);
    const bool keep = (RandomWords(kKey, element / 4)[element % 4] >> 8) >= 0x600000;
    const S expected = keep ? S(static_cast<float>(x[i]) * 1.6f) : S(0);
    ASSERT_EQ(static_cast<float>(y[i]), static_cast<float>(expected)) << first << " + " << i << " of " << n;
  }
  ASSERT_EQ(static_cast<float>(y[n]), 99) << first << " " << n;
}

TEST(RandomSpans, DropoutTakesTheWordsOfItsElements) {
  ForEachLevel([] {
    // As above: inside a block of four, across the carry.
    for (const uint64_t first : {uint64_t{0}, uint64_t{3}, uint64_t{77}, (uint64_t{1} << 34) - 70}) {
      for (const int64_t n : {0, 1, 2, 5, 31, 64, 65, 129, 515}) {
        ExpectDropped<float>(first, n);
        ExpectDropped<BFloat16>(first, n);
      }
    }
  });
}

// philox_test's hash of the first million normal values, here in bulk.
TEST(RandomSpans, GoldenHash) {
  const RandomKey key = {.seed = 1234, .stream = StreamOf("blocks.0.attn.qkv.weight"), .step = 5};
  ForEachLevel([&] {
    std::vector<uint32_t> words(1'000'000);
    std::vector<float> values(words.size());
    RandomWordSpan(key, 0, words.data(), static_cast<int64_t>(words.size()));
    NormalSpan(words.data(), 0, 1, values.data(), static_cast<int64_t>(words.size()));
    uint64_t hash = 0xcbf29ce484222325u;
    for (const float value : values) {
      const uint32_t bits = std::bit_cast<uint32_t>(value);
      for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((bits >> shift) & 0xff)) * 0x100000001b3u;
    }
    EXPECT_EQ(hash, 0x631a111fa363d95eu);
  });
}

// The order that sum_spans.h defines, an element at a time.
double SumInOrder(const std::vector<float>& x, bool squares) {
  double total = 0;
  for (size_t begin = 0; begin < x.size(); begin += kSumRun) {
    float sums[32] = {};
    for (size_t i = begin; i < std::min<size_t>(begin + kSumRun, x.size()); ++i) {
      sums[(i - begin) % 32] += squares ? x[i] * x[i] : x[i];
    }
    for (int half = 16; half >= 4; half /= 2) {
      for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    }
    for (int j = 0; j < 4; ++j) total += static_cast<double>(sums[j]);
  }
  return total;
}

TEST(SumSpans, HaveTheBitsOfTheDefinition) {
  ForEachLevel([] {
    for (const int64_t n : {0, 1, 31, 32, 33, 511, 512, 513, 544, 2049, 5000}) {
      const std::vector<float> x = UniformFloats(n, -3, 5);
      EXPECT_EQ(SumSpan(0, x.data(), n), SumInOrder(x, false)) << n;
      EXPECT_EQ(SquareSumSpan(0, x.data(), n), SumInOrder(x, true)) << n;
      std::vector<BFloat16> halves(n);
      std::vector<float> rounded(n);
      for (int64_t i = 0; i < n; ++i) rounded[i] = static_cast<float>(halves[i] = BFloat16(x[i]));
      EXPECT_EQ(SumElements<false>(0, halves.data(), n), SumInOrder(rounded, false)) << n;
    }
  });
}

TEST(SumSpans, RowsHaveTheBitsOfTheDefinition) {
  ForEachLevel([] {
    for (const int64_t columns : {1, 15, 16, 17, 513}) {
      for (const int64_t rows : {0, 1, 3, 4, 5, 16}) {
        const int64_t stride = columns + 3;
        const std::vector<float> x = UniformFloats(rows * stride, -3, 5);
        std::vector<Float16> halves;
        for (const float value : x) halves.push_back(Float16(value));
        std::vector<BFloat16> brains;
        for (const float value : x) brains.push_back(BFloat16(value));
        std::vector<float> sums(columns, 0.5f), squares = sums, of_halves = sums, of_brains = sums;
        AddRowsSpan(x.data(), rows, columns, stride, sums.data());
        AddSquaredRowsSpan(x.data(), rows, columns, stride, squares.data());
        AddElementRows<true>(halves.data(), rows, columns, stride, of_halves.data());
        AddElementRows<false>(brains.data(), rows, columns, stride, of_brains.data());
        for (int64_t i = 0; i < columns; ++i) {
          float sum = 0.5f, square = 0.5f, of_half = 0.5f, of_brain = 0.5f;
          for (int64_t row = 0; row < rows; ++row) {
            const float value = x[row * stride + i], half = static_cast<float>(halves[row * stride + i]);
            sum += value, square += value * value, of_half += half * half;
            of_brain += static_cast<float>(brains[row * stride + i]);
          }
          ASSERT_EQ(sums[i], sum) << rows << " x " << columns << " at " << i;
          ASSERT_EQ(squares[i], square) << rows << " x " << columns << " at " << i;
          ASSERT_EQ(of_halves[i], of_half) << rows << " x " << columns << " at " << i;
          ASSERT_EQ(of_brains[i], of_brain) << rows << " x " << columns << " at " << i;
        }
      }
    }
  });
}

constexpr float kInf = std::numeric_limits<float>::infinity();

// |actual - expected| in units of the last place of an f32.
double Ulps(float actual, double expected) {
  return std::abs(actual - expected) / std::ldexp(1, std::max(std::ilogb(expected), -126) - 23);
}

double GeluErf(double x) { return x / 2 * std::erfc(-x / std::numbers::sqrt2); }
double GeluErfSlope(double x) {
  return std::erfc(-x / std::numbers::sqrt2) / 2 +
         x * std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
}

TEST(FloatSpans, GeluByErfKeepsTheDigitsOfItsTail) {
  const std::vector<float> x = UniformFloats(40'001, -14, 14);
  const std::vector<float> ones(x.size(), 1);
  const int64_t n = static_cast<int64_t>(x.size());
  ForEachLevel([&] {
    std::vector<float> y(n), slope(n);
    FloatSpan(UnaryFunction::kGeluErf)(x.data(), y.data(), n);
    FloatSpan(BinaryFunction::kGeluErfGrad)(x.data(), ones.data(), slope.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const double exact = GeluErf(x[i]);
      ASSERT_LE(std::abs(y[i] - exact), 1e-6 * std::abs(x[i])) << x[i];
      if (x[i] > -4) {
        ASSERT_LE(Ulps(y[i], exact), 12) << x[i];
      }
      if (x[i] > -13) {
        ASSERT_LE(std::abs(y[i] - exact), 1e-5 * std::abs(exact)) << x[i];
      }
      ASSERT_NEAR(slope[i], GeluErfSlope(x[i]), 2e-6) << x[i];
    }
  });
}

TEST(FloatSpans, GeluAtItsEnds) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const float x[] = {0, -0.0f, 1e-40f, kInf, -kInf, kNan, 3e38f, -3e38f, 13.3f};
  const float expected[] = {0, -0.0f, 5e-41f, kInf, 0, kNan, 3e38f, 0, 13.3f};
  ForEachLevel([&] {
    for (const UnaryFunction function : {UnaryFunction::kGelu, UnaryFunction::kGeluErf}) {
      float y[9];
      FloatSpan(function)(x, y, 9);
      for (int i = 0; i < 9; ++i) {
        EXPECT_TRUE(std::isnan(expected[i]) ? std::isnan(y[i])
                                            : std::abs(y[i] - expected[i]) <= 1e-44f || y[i] == expected[i])
            << x[i] << ": " << y[i];
      }
    }
  });
}

// Every half there is, and floats between them: nans, subnormals, ties and what overflows.
TEST(FloatSpans, HalvesHaveTheBitsOfTheWayThroughFloats) {
  std::vector<BFloat16> x;
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    x.push_back(BFloat16::FromBits(static_cast<uint16_t>(bits)));
  x.resize(x.size() - 3);  // a tail
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<BFloat16> other(n);
  for (int64_t i = 0; i < n; ++i) other[i] = x[i * 40503 % n];
  std::vector<float> wide(n), wide_other(n), wide_y(n);
  for (int64_t i = 0; i < n; ++i) {
    wide[i] = static_cast<float>(x[i]), wide_other[i] = static_cast<float>(other[i]);
  }
  ForEachLevel([&] {
    const auto expect = [&](const std::vector<BFloat16>& y, int function) {
      for (int64_t i = 0; i < n; ++i) {
        const bool same = std::isnan(wide_y[i]) ? std::isnan(static_cast<float>(y[i]))
                                                : y[i].bits() == BFloat16(wide_y[i]).bits();
        ASSERT_TRUE(same) << function << " of " << wide[i] << ", " << wide_other[i];
      }
    };
    std::vector<BFloat16> y(n);
    for (int f = 0; f <= static_cast<int>(UnaryFunction::kSilu); ++f) {
      FloatSpan(static_cast<UnaryFunction>(f))(wide.data(), wide_y.data(), n);
      BFloat16Span(static_cast<UnaryFunction>(f))(x.data(), y.data(), n);
      expect(y, f);
    }
    for (int f = 0; f <= static_cast<int>(BinaryFunction::kSiluGrad); ++f) {
      FloatSpan(static_cast<BinaryFunction>(f))(wide.data(), wide_other.data(), wide_y.data(), n);
      BFloat16Span(static_cast<BinaryFunction>(f))(x.data(), other.data(), y.data(), n);
      expect(y, 100 + f);
    }
  });
}

}  // namespace
}  // namespace weft
