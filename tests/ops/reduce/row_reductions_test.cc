#include "ops/reduce/row_reductions.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "ops/elementwise/settle.h"
#include "ops/normalization/norm_rstd.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor Make(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor Random(DType dtype, const Shape& shape, int seed) {
  std::mt19937_64 random(seed);
  return RandomTensor({{dtype, shape}, -3, 3}, random);
}

// One number per row of `num_rows` rows, by a plain loop.
using OfRow = std::function<double(const double* x, int64_t n, int64_t row)>;
std::vector<double> ByRow(const Tensor& x, int64_t num_rows, const OfRow& of) {
  const std::vector<double> values = x.ToVector<double>();
  const int64_t n = x.shape()[x.ndim() - 1];
  std::vector<double> result;
  for (int64_t row = 0; row < num_rows; ++row) result.push_back(of(values.data() + row * n, n, row));
  return result;
}

double Sum(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i];
  return sum;
}

class RowReductionsTest : public ::testing::TestWithParam<DType> {};

TEST_P(RowReductionsTest, MatchNaiveLoops) {
  const DType dtype = GetParam();
  const DType result = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const double tolerance = dtype == DType::kF64 ? 1e-12 : 1e-5;
  for (const Shape& shape :
       {Shape{7}, Shape{0, 3}, Shape{3, 0}, Shape{4, 1}, Shape{2, 3, 31}, Shape{3, 64}, Shape{2, 4100}}) {
    Shape rows = shape;
    rows.Remove(shape.ndim() - 1);
    const int64_t num_rows = rows.num_elements();
    const Tensor x = Random(dtype, shape, 1);
    const Tensor other = Random(dtype, shape, 2);
    const Tensor around = Random(result, rows, 3);
    const std::vector<double> o = other.ToVector<double>();
    const std::vector<double> a = around.ToVector<double>();
    const auto expect = [&](const Tensor& actual, const OfRow& of) {
      EXPECT_TRUE(AllClose(actual, Make(result, rows, ByRow(x, num_rows, of)), tolerance))
          << shape.ToString();
    };
    expect(RunOp(kRowMax, {x}), [](const double* v, int64_t n, int64_t) {
      double max = -kInf;
      for (int64_t i = 0; i < n; ++i) max = std::max(max, v[i]);
      return max;
    });
    expect(RunOp(kRowSum, {x}), [](const double* v, int64_t n, int64_t) { return Sum(v, n); });
    expect(RunOp(kRowMean, {x}),
           [](const double* v, int64_t n, int64_t) { return n == 0 ? 0 : Sum(v, n) / n; });
    expect(RunOp(kRowDot, {x, other}), [&](const double* v, int64_t n, int64_t row) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += v[i] * o[row * n + i];
      return sum;
    });
    expect(RunOp(kRowExpSum, {x, around}), [&](const double* v, int64_t n, int64_t row) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += std::exp(v[i] - a[row]);
      return sum;
    });
    expect(RunOp(kRowMeanSquare, {x}), [](const double* v, int64_t n, int64_t) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += v[i] * v[i];
      return n == 0 ? 0 : sum / n;
    });
    expect(RunOp(kRowVariance, {x, around}), [&](const double* v, int64_t n, int64_t row) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += (v[i] - a[row]) * (v[i] - a[row]);
      return n == 0 ? 0 : sum / n;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RowReductionsTest, ::testing::Values(DType::kF32, DType::kF64, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(RowReductionsTest, TheMaximumKeepsNansAndInfinities) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    // A nan at every place of rows that are whole vectors, have tails, or are tails.
    for (int64_t n : {1, 5, 16, 33, 64}) {
      for (int64_t at = 0; at < n; ++at) {
        std::vector<double> row(n, 1.0);
        row[at] = kNan;
        ASSERT_TRUE(std::isnan(RunOp(kRowMax, {Make(dtype, {n}, row)}).ToVector<double>()[0]))
            << n << " " << at;
        row[at] = kInf;
        ASSERT_EQ(RunOp(kRowMax, {Make(dtype, {n}, row)}).ToVector<double>()[0], kInf) << n << " " << at;
      }
    }
  }
}

TEST(RowReductionsTest, ExponentialsFarFromTheMaximum) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Tensor x = Make(dtype, {9}, {0, -1, -50, -88, -800, -1e30, -kInf, -20, -2});
    const Tensor zero = Make(dtype, {}, {0});
    EXPECT_TRUE(AllClose(RunOp(kRowExpSum, {x, zero}),
                         Make(dtype, {}, {1 + std::exp(-1) + std::exp(-2) + std::exp(-20)}), 1e-7));
    // A row of -inf adds nothing, even around its own maximum.
    const Tensor lowest = Make(dtype, {2}, {-kInf, -kInf});
    EXPECT_EQ(RunOp(kRowExpSum, {lowest, Make(dtype, {}, {-kInf})}).ToVector<double>()[0], 0);
    EXPECT_TRUE(std::isnan(RunOp(kRowExpSum, {Make(dtype, {2}, {0, kNan}), zero}).ToVector<double>()[0]));
    // Wrong maxima give large numbers, not wrong ones.
    EXPECT_EQ(RunOp(kRowExpSum, {Make(dtype, {1}, {5000}), zero}).ToVector<double>()[0], kInf);
  }
}

TEST(RowReductionsTest, LongF32SumsKeepTheirDigits) {
  // 0.1 a million times: one f32 accumulator would end near 100958.
  const Tensor x = Make(DType::kF32, {1000000}, std::vector<double>(1000000, 0.1));
  EXPECT_NEAR(RunOp(kRowSum, {x}).ToVector<double>()[0], 1e6 * static_cast<double>(0.1f), 2);
}

// Whatever the number of columns: the lanes beyond the last one, which are filled with the mean, are no
// elements.
TEST(RowReductionsTest, VarianceAroundAnInfiniteMeanIsInfinite) {
  for (int64_t columns = 1; columns <= 20; ++columns) {
    const Tensor x = Make(DType::kF32, {1, columns}, std::vector<double>(columns, 2.0));
    const Tensor mean = Make(DType::kF32, {1}, {kInf});
    EXPECT_EQ(RunOp(kRowVariance, {x, mean}).ToVector<double>()[0], kInf) << columns << " columns";
  }
}

TEST(RowReductionsTest, MeansOfPiecesDivideByTheGlobalExtent) {
  const Tensor x = Make(DType::kF64, {2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 11});
  const auto mean = [&](Range range) {
    return RunSharded(kRowMean, {SplitPiece(x, 1, range)}, {WholeBox({2})})[0].ToVector<double>();
  };
  EXPECT_EQ(mean({0, 3}), (std::vector<double>{1.2, 21 / 5.0}));
  EXPECT_EQ(mean({3, 2}), (std::vector<double>{9 / 5.0, 4}));
  EXPECT_EQ(mean({5, 0}), (std::vector<double>{0, 0}));
}

TEST(NormRstdTest, IsTheInverseSquareRoot) {
  EXPECT_TRUE(AllClose(RunOp(kNormRstd, {Make(DType::kF32, {3}, {0, 3, 15})}, {.eps = 1}),
                       Make(DType::kF32, {3}, {1, 0.5, 0.25}), 1e-7));
  EXPECT_THROW(RunOp(kNormRstd, {Make(DType::kBF16, {1}, {1})}), Error);
}

TEST(SettleTest, IsAView) {
  const Tensor x = Random(DType::kF32, {3, 4}, 5);
  EXPECT_EQ(RunOp(kSettle, {x}).data(), x.data());
  EXPECT_TRUE(SameBits(Backward(kSettle, {x}, {x})[0], x));
}

}  // namespace
}  // namespace weft
