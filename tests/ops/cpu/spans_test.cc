// Functions over arrays that are compiled for every instruction set level: each level that this machine runs.

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "ops/cpu/float_spans.h"
#include "ops/cpu/random_spans.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/sum_elements.h"
#include "runtime/base/error.h"
#include "runtime/base/philox.h"
#include "tests/message_of.h"

namespace weft {
namespace {

void ForEachLevel(const std::function<void()>& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

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
  std::vector<float> x(words.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 600.25f;
  ForEachLevel([&] {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{15}, int64_t{17}, int64_t{511}, int64_t{513},
                            static_cast<int64_t>(words.size())}) {
      std::vector<float> uniform(n + 1, 99), normal(n + 1, 99), dropped(n + 1, 99);
      UniformSpan(words.data(), -2.5f, 3.7f, uniform.data(), n);
      NormalSpan(words.data(), 0.3f, 1.7f, normal.data(), n);
      DropoutSpan(words.data(), x.data(), 0x600000, 1.6f, dropped.data(), n);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(uniform[i], -2.5f + 3.7f * UniformFromWord(words[i])) << words[i];
        ASSERT_EQ(normal[i], 0.3f + 1.7f * NormalFromWord(words[i])) << words[i];
        ASSERT_EQ(dropped[i], (words[i] >> 8) >= 0x600000 ? x[i] * 1.6f : 0) << i;
      }
      EXPECT_EQ(uniform[n] + normal[n] + dropped[n], 3 * 99);
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

std::vector<float> Uniform(int64_t n, float low, float high) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::uniform_real_distribution<float> draw(low, high);
  std::vector<float> values(n);
  for (float& value : values) value = draw(random);
  return values;
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
      const std::vector<float> x = Uniform(n, -3, 5);
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
        const std::vector<float> x = Uniform(rows * stride, -3, 5);
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
  const std::vector<float> x = Uniform(40'001, -14, 14);
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

// Each element alone, by a row of one.
TEST(Rows, ExpIsAccurateToItsEnds) {
  ForEachLevel([] {
    for (const float x : Uniform(20'000, -87.2f, 88.6f)) {
      ASSERT_NEAR(Rows<float>().exp_sum(&x, 1, 0) / std::exp(static_cast<double>(x)), 1, 5e-7) << x;
    }
    const float zero = 0;
    EXPECT_EQ(Rows<float>().exp_sum(&zero, 1, 0), 1);
    const float ends[] = {-kInf, -1e30f, -88, 89, 1000, kInf, std::numeric_limits<float>::quiet_NaN()};
    float y[7];
    Rows<float>().exp_write(ends, 7, 0, y);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(y[i], 0) << ends[i];
    for (int i = 3; i < 6; ++i) EXPECT_EQ(y[i], kInf) << ends[i];
    EXPECT_TRUE(std::isnan(y[6]));
  });
}

TEST(Rows, NormGradSumsMatchTheirDefinition) {
  ForEachLevel([] {
    for (const int64_t n : {0, 1, 15, 17, 33, 4097}) {
      const std::vector<float> x = Uniform(n, -2, 3), w = Uniform(n, -1, 1), dy = Uniform(n, -3, 1);
      std::vector<float> dw(n, 0.5f), db(n, 0.25f);
      const NormSums sums =
          Rows<float>().norm_grad_sums(x.data(), w.data(), dy.data(), n, 0.5f, 2, dw.data(), db.data());
      double g = 0, g_centered = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double product = static_cast<double>(dy[i]) * w[i];
        g += product, g_centered += product * (x[i] - 0.5);
        ASSERT_NEAR(dw[i], 0.5 + dy[i] * (x[i] - 0.5) * 2, 4e-6);
        ASSERT_NEAR(db[i], 0.25 + dy[i], 1e-6);
      }
      EXPECT_NEAR(sums.g, g, 1e-3) << n;
      EXPECT_NEAR(sums.g_centered, g_centered, 3e-3) << n;
    }
  });
}

}  // namespace
}  // namespace weft
