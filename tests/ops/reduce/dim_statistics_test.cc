// Variance, log-sum-exp and norms over sets of dims, and the parts and tiles in which rows along dims are
// read.

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/reduce/log_sum_exp.h"
#include "ops/reduce/variance.h"
#include "ops/reduce/vector_norm.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor F64(const Shape& shape, const std::vector<double>& values) {
  return Tensor::FromValues<double>(shape, values);
}

Tensor Random(DType dtype, const Shape& shape, double low, double high) {
  std::mt19937_64 random(shape.num_elements() + 5);
  return RandomTensor({{dtype, shape}, low, high}, random);
}

// fold(elements) over `dims`, of shape and dtype as `like`.
template <class Fold>
Tensor Naive(const Tensor& x, DimMask dims, const Tensor& like, const Fold& fold) {
  const std::vector<double> values = x.ToVector<double>();
  std::vector<double> results;
  for (const std::vector<int64_t>& row : ElementsAlong(x.shape(), dims)) {
    std::vector<long double> elements;
    for (int64_t i : row) elements.push_back(values[i]);
    results.push_back(static_cast<double>(fold(elements)));
  }
  return CastTensor(F64(like.shape(), results), like.dtype(), MakeCpuAllocator());
}

long double VarianceOf(const std::vector<long double>& x, double correction) {
  long double mean = 0, squares = 0;
  for (long double v : x) mean += v / static_cast<long double>(x.size());
  for (long double v : x) squares += (v - mean) * (v - mean);
  return squares / std::max(0.0L, static_cast<long double>(x.size()) - correction);
}

long double LogSumExpOf(const std::vector<long double>& x) {
  long double sum = 0;
  for (long double v : x) sum += std::exp(v);
  return std::log(sum);
}

long double NormOf(const std::vector<long double>& x, double p) {
  long double sum = 0, max = 0, min = kInf;
  for (long double v : x) {
    sum += p == 0 ? (v != 0 ? 1 : 0) : std::pow(std::abs(v), static_cast<long double>(p));
    max = std::max(max, std::abs(v));
    min = std::min(min, std::abs(v));
  }
  return p == kInf ? max : p == -kInf ? min : p == 0 ? sum : std::pow(sum, 1 / static_cast<long double>(p));
}

struct Case {
  Shape shape;
  DimMask dims;
};

// Single rows, rows apart (one tile and several), dims that no one stride steps through, parts of long rows.
const Case kCases[] = {{{1}, 1},           {{7}, 1},           {{3, 5}, 0b10},     {{3, 5}, 0b01},
                       {{3, 5}, 0b11},     {{40, 33}, 0b01},   {{3, 4, 5}, 0b101}, {{3, 4, 5}, 0b010},
                       {{2, 70001}, 0b10}, {{70001, 2}, 0b01}, {{0, 3}, 0b10},     {{2, 3}, 0}};

double ToleranceOf(DType dtype) {
  return dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 2e-6 : dtype == DType::kF16 ? 1e-3 : 8e-3;
}

class DimStatisticsTest : public ::testing::TestWithParam<DType> {};

TEST_P(DimStatisticsTest, VarianceMatchesALoop) {
  for (const Case& c : kCases) {
    const Tensor x = Random(GetParam(), c.shape, -2, 2);
    for (double correction : {0.0, 1.0, 0.5}) {
      const VarianceAttributes a = {.dims = c.dims, .correction = correction};
      const std::vector<Tensor> y = RunAll(kVariance, {x}, a);
      const auto variance = [&](const auto& row) { return VarianceOf(row, correction); };
      EXPECT_TRUE(AllClose(y[0], Naive(x, c.dims, y[0], variance), ToleranceOf(GetParam())))
          << x.TypeString() << " " << c.dims;
      const auto root = [&](const auto& row) { return std::sqrt(VarianceOf(row, correction)); };
      EXPECT_TRUE(AllClose(RunOp(kStd, {x}, a), Naive(x, c.dims, y[0], root), ToleranceOf(GetParam())))
          << x.TypeString() << " " << c.dims;
      EXPECT_TRUE(SameBits(RunOp(kVariance, {x}, a, {}, /*num_threads=*/3), y[0]));
    }
  }
}

TEST_P(DimStatisticsTest, LogSumExpMatchesALoop) {
  for (const Case& c : kCases) {
    const Tensor x = Random(GetParam(), c.shape, -4, 4);
    const Tensor y = RunOp(kLogSumExp, {x}, {.dims = c.dims});
    EXPECT_TRUE(AllClose(y, Naive(x, c.dims, y, LogSumExpOf), ToleranceOf(GetParam())))
        << x.TypeString() << " " << c.dims;
    EXPECT_TRUE(SameBits(RunOp(kLogSumExp, {x}, {.dims = c.dims}, {}, /*num_threads=*/3), y));
  }
}

TEST_P(DimStatisticsTest, NormsMatchALoop) {
  for (const Case& c : kCases) {
    const Tensor x = Random(GetParam(), c.shape, -2, 2);
    for (double p : {2.0, 1.0, 0.0, 3.0, 0.5, kInf, -kInf}) {
      const bool quick = p == 2 || std::isinf(p);
      if (!quick && x.num_elements() > 10000) continue;
      if (GetParam() == DType::kF16 && x.num_elements() > 1000) continue;  // 0.5 leaves its range
      const NormAttributes a = {.dims = c.dims, .p = p};
      const Tensor y = RunOp(kVectorNorm, {x}, a);
      const auto norm = [&](const auto& row) { return NormOf(row, p); };
      EXPECT_TRUE(AllClose(y, Naive(x, c.dims, y, norm), ToleranceOf(GetParam())))
          << x.TypeString() << " " << c.dims << " p " << p;
      EXPECT_TRUE(SameBits(RunOp(kVectorNorm, {x}, a, {}, /*num_threads=*/3), y));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, DimStatisticsTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// E[x^2] - E[x]^2 would be off by some 8 here, and a bf16 mean by as much.
TEST(VarianceTest, DoesNotCancel) {
  std::vector<double> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 10000 + (i % 2 == 0 ? 0.5 : -0.5);
  const Tensor x = CastTensor(F64({1000}, values), DType::kF32, MakeCpuAllocator());
  EXPECT_FLOAT_EQ(RunOp(kVariance, {x}, {.dims = 1, .correction = 0}).ToVector<float>()[0], 0.25f);
  for (double& value : values) value = value > 10000 ? 256 : 258;
  const Tensor half = CastTensor(F64({1000}, values), DType::kBF16, MakeCpuAllocator());
  EXPECT_EQ(RunOp(kVariance, {half}, {.dims = 1, .correction = 0}).ToVector<float>()[0], 1.f);
  EXPECT_EQ(RunDecomposedErased(kVariance, {half},
                                std::vector<VarianceAttributes>{{.dims = 1, .correction = 0}}.data(),
                                std::vector<NoScalars>(1).data())[0]
                .ToVector<float>()[0],
            1.f);
}

TEST(VarianceTest, WhereNothingIsLeftToDivideBy) {
  const auto variance = [](const std::vector<double>& values, double correction) {
    const Tensor x = F64({static_cast<int64_t>(values.size())}, values);
    const VarianceAttributes a = {.dims = 1, .correction = correction};
    const NoScalars none;
    const double whole = RunOp(kVariance, {x}, a).ToVector<double>()[0];
    const double decomposed = RunDecomposedErased(kVariance, {x}, &a, &none)[0].ToVector<double>()[0];
    EXPECT_TRUE(whole == decomposed || (std::isnan(whole) && std::isnan(decomposed)));
    return whole;
  };
  EXPECT_TRUE(std::isnan(variance({5}, 1)));
  EXPECT_TRUE(std::isnan(variance({}, 0)));
  EXPECT_EQ(variance({5}, 0), 0);
  EXPECT_EQ(variance({5, 6}, 2), kInf);
  EXPECT_TRUE(std::isnan(variance({1, kInf, 2}, 1)));
}

// Squares leave the range of f32, which bf16 shares; their root does not.
TEST(VarianceTest, DeviationsWhoseSquaresLeaveF32) {
  const NoScalars none;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (double deviation : {1e20, 1e-25}) {
      const Tensor x = CastTensor(F64({2}, {deviation, -deviation}), dtype, MakeCpuAllocator());
      const VarianceAttributes a = {.dims = 1, .correction = 0};
      for (const Tensor& y : {RunOp(kStd, {x}, a), RunDecomposedErased(kStd, {x}, &a, &none)[0]}) {
        EXPECT_EQ(y.ToVector<double>()[0], x.ToVector<double>()[0]) << x.TypeString();
      }
    }
  }
  // Their mean is within it where their sum is not.
  std::vector<double> values(100000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 1e17 : -1e17;
  const Tensor x = CastTensor(F64({100000}, values), DType::kF32, MakeCpuAllocator());
  const VarianceAttributes a = {.dims = 1};
  for (const Tensor& y : {RunOp(kVariance, {x}, a), RunDecomposedErased(kVariance, {x}, &a, &none)[0]}) {
    EXPECT_NEAR(y.ToVector<float>()[0], 1.00001e34, 1e28);
  }
}

TEST(VarianceTest, MeanAndGradient) {
  const Tensor x = F64({2, 2}, {1, 3, 5, 5});
  const std::vector<Tensor> y = RunAll(kStd, {x}, {.dims = 0b10, .correction = 0});
  EXPECT_THAT(y[0].ToVector<double>(), ElementsAre(1, 0));
  EXPECT_THAT(y[1].ToVector<double>(), ElementsAre(2, 5));
  EXPECT_EQ(y[1].TypeString(), "f64[2, 1]");
  // d std = (x - mean) / (n std), and 0 for a row of equals.
  const Tensor dy = F64({2}, {10, 10});
  EXPECT_THAT(Backward(kStd, {x}, {dy, Tensor()}, {.dims = 0b10, .correction = 0})[0].ToVector<double>(),
              ElementsAre(-5, 5, 0, 0));
  EXPECT_THAT(Backward(kVariance, {x}, {dy, Tensor()}, {.dims = 0b10, .correction = 0})[0].ToVector<double>(),
              ElementsAre(-10, 10, 0, 0));
  // That of the mean goes to its elements in equal parts.
  EXPECT_THAT(Backward(kVariance, {x}, {Tensor(), y[1]}, {.dims = 0b10})[0].ToVector<double>(),
              ElementsAre(1, 1, 2.5, 2.5));
}

TEST(LogSumExpTest, ExtremeRows) {
  const Tensor x = F64({6, 2}, {-kInf, -kInf, -kInf, 3, kInf, 1, kNan, 1, 1e300, 1e300, kInf, kNan});
  const ReduceAttributes a = {.dims = 0b10};
  const NoScalars none;
  for (const Tensor& y : {RunOp(kLogSumExp, {x}, a), RunDecomposedErased(kLogSumExp, {x}, &a, &none)[0]}) {
    EXPECT_TRUE(AllClose(y, F64({6}, {-kInf, 3, kInf, kNan, 1e300, kNan}), 0));
  }
  EXPECT_THAT(RunOp(kLogSumExp, {F64({2, 0}, {})}, a).ToVector<double>(), ElementsAre(-kInf, -kInf));
  // Parts of one row: the first without, the last with what decides.
  std::vector<double> values(100000, -kInf);
  values.back() = 2;
  EXPECT_EQ(RunOp(kLogSumExp, {F64({1, 100000}, values)}, a).ToVector<double>()[0], 2);
  values[0] = kInf;
  EXPECT_EQ(RunOp(kLogSumExp, {F64({1, 100000}, values)}, a).ToVector<double>()[0], kInf);
  values[50000] = kNan;
  EXPECT_TRUE(std::isnan(RunOp(kLogSumExp, {F64({1, 100000}, values)}, a).ToVector<double>()[0]));
  // The gradient of a row of -inf is 0, and else a share.
  const Tensor two = F64({2, 2}, {-kInf, -kInf, 1, 1});
  EXPECT_TRUE(
      AllClose(Backward(kLogSumExp, {two}, {F64({2}, {3, 4})}, a)[0], F64({2, 2}, {0, 0, 2, 2}), 1e-15));
}

TEST(VectorNormTest, GradientsAtKinks) {
  const Tensor x = F64({4}, {-3, 0, 3, 1});
  const auto gradient = [&](const Tensor& of, double p, double dy = 6) {
    return Backward(kVectorNorm, {of}, {F64({}, {dy})}, {.dims = 1, .p = p})[0];
  };
  EXPECT_THAT(gradient(x, kInf).ToVector<double>(), ElementsAre(-3, 0, 3, 0));
  EXPECT_THAT(gradient(x, -kInf).ToVector<double>(), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(gradient(x, 1).ToVector<double>(), ElementsAre(-6, 0, 6, 6));
  for (double p : {1.0, 2.0, 3.0, 0.5, kInf, -kInf}) {
    // The root of a norm, for one, has an infinite slope at 0.
    for (double dy : {6.0, kInf}) {
      EXPECT_THAT(gradient(F64({2}, {0, 0}), p, dy).ToVector<double>(), ElementsAre(0, 0)) << p << " " << dy;
    }
  }
  EXPECT_FALSE(gradient(x, 0).defined());  // constant
  const Tensor rows = F64({2, 2}, {0, 0, 3, 4});
  EXPECT_THAT(Backward(kVectorNorm, {rows}, {F64({2}, {kInf, 5})}, {.dims = 0b10})[0].ToVector<double>(),
              ElementsAre(0, 0, 3, 4));
}

// More ties than f16 has numbers for.
TEST(VectorNormTest, CountsTiesBeyondF16) {
  const int64_t n = 1 << 17;
  const auto half = [](const Tensor& t) { return CastTensor(t, DType::kF16, MakeCpuAllocator()); };
  const Tensor x = half(F64({n}, std::vector<double>(n, 3)));
  const Tensor dy = half(F64({}, {1 << 15}));
  for (double p : {kInf, -kInf}) {
    const Tensor dx = Backward(kVectorNorm, {x}, {dy}, {.dims = 1, .p = p})[0];
    EXPECT_EQ(dx.TypeString(), "f16[131072]");
    EXPECT_EQ(dx.ToVector<double>(), std::vector<double>(n, 0.25)) << p;
  }
}

TEST(VectorNormTest, PowersOfLargeNumbersDoNotOverflow) {
  const Tensor x = Tensor::FromValues<float>({2}, {3e30f, 4e30f});
  EXPECT_FLOAT_EQ(RunOp(kVectorNorm, {x}, {.dims = 1}).ToVector<float>()[0], 5e30f);
  EXPECT_EQ(RunOp(kPowerSum, {x}, {.dims = 1}).TypeString(), "f64[]");
  EXPECT_TRUE(
      std::isnan(RunOp(kVectorNorm, {F64({3}, {1, kNan, 9})}, {.dims = 1, .p = kInf}).ToVector<double>()[0]));
  EXPECT_TRUE(std::isnan(
      RunOp(kVectorNorm, {F64({3}, {1, kNan, 9})}, {.dims = 1, .p = -kInf}).ToVector<double>()[0]));
}

TEST(DimStatisticsStridesTest, ViewsOfAnyStrides) {
  const Tensor x = Random(DType::kF64, {3, 4, 5}, -2, 2);
  const auto check = [](const Tensor& view, DimMask dims) {
    const Tensor dense = CloneTensor(view, MakeCpuAllocator());
    EXPECT_TRUE(SameBits(RunOp(kVariance, {view}, {.dims = dims}), RunOp(kVariance, {dense}, {.dims = dims})))
        << view.TypeString() << " " << dims;
  };
  for (DimMask dims = 0; dims < 8; ++dims) {
    check(x.Transpose(0, 2), dims);
    check(x.Slice(1, 1, 2), dims);
    check(x.Slice(0, 1, 1).Expand({2, 4, 5}), dims);
    check(x.Select(2, 3).Reshape({3, 4, 1}).Expand({3, 4, 6}), dims);
    check(x.Slice(0, 0, 1).Slice(2, 4, 1).Expand({3, 4, 2}), dims);
  }
}

TEST(DimStatisticsMisuseTest, NamesOpAndType) {
  const Tensor x = F64({2, 0}, {});
  const Tensor i = Tensor::FromValues<int32_t>({2}, {1, 2});
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kVariance, {i}, {.dims = 1}); }),
            "variance: expected a floating dtype, got i32[2]");
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kStd, {x}, {.dims = 0b100}); }),
            "std: dims name one outside f64[2, 0]");
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kLogSumExp, {i}, {.dims = 1}); }),
            "log_sum_exp: expected a floating dtype, got i32[2]");
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kVectorNorm, {x}, {.dims = 0b10, .p = kInf}); }),
            "vector_norm: f64[2, 0] is empty along the dims and has no extremum");
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kVectorNorm, {x}, {.dims = 0b10, .p = kNan}); }),
            "vector_norm: p must be a number, got nan");
}

}  // namespace
}  // namespace weft
