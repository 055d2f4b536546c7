#include "ops/reduce/reduce.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor FromDoubles(const Shape& shape, const std::vector<double>& values, DType dtype = DType::kF32) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor Uniform(const Shape& shape, double low, double high, DType dtype = DType::kF32) {
  std::mt19937 random(static_cast<unsigned>(shape.num_elements()));
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = uniform(random);
  return FromDoubles(shape, values, dtype);
}

// Folds the elements that share their kept indices, one after the other in double.
std::vector<double> Fold(const Tensor& x, DimMask dims, double identity, double (*fold)(double, double)) {
  const Shape& shape = x.shape();
  int64_t num_results = 1;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if ((dims >> dim & 1) == 0) num_results *= shape[dim];
  }
  std::vector<double> results(num_results, identity);
  const std::vector<double> values = x.ToVector<double>();
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    int64_t rest = i;
    int64_t result = 0;
    int64_t stride = 1;
    for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
      if ((dims >> dim & 1) == 0) {
        result += rest % shape[dim] * stride;
        stride *= shape[dim];
      }
      rest /= shape[dim];
    }
    results[result] = fold(results[result], values[i]);
  }
  return results;
}

double AddTo(double a, double b) { return a + b; }
double Larger(double a, double b) { return b > a ? b : a; }
double Smaller(double a, double b) { return b < a ? b : a; }

struct Case {
  Shape shape;
  DimMask dims;
};

// Every shape of loop: rows, columns, both, chunked rows (> 32768) and columns (> 32 blocks), column blocks
// (> 1024).
const Case kCases[] = {{{}, 0},
                       {{5}, 0},
                       {{1}, 1},
                       {{31}, 1},
                       {{33}, 1},
                       {{2049}, 1},
                       {{100003}, 1},
                       {{3, 5}, 0b01},
                       {{3, 5}, 0b10},
                       {{3, 5}, 0b11},
                       {{2000, 3}, 0b01},
                       {{3, 40000}, 0b10},
                       {{300, 1025}, 0b01},
                       {{40000, 3}, 0b01},
                       {{40000, 3}, 0b10},
                       {{4, 3, 5}, 0b010},
                       {{4, 3, 5}, 0b101},
                       {{3, 4, 5, 6}, 0b0101},
                       {{3, 4, 5, 6}, 0b1010},
                       {{3, 1, 5, 1}, 0b1001},
                       {{2, 40000, 2}, 0b010}};

TEST(ReduceTest, SumMatchesANaiveFold) {
  for (const Case& c : kCases) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64}) {
      const Tensor x = Uniform(c.shape, IsFloating(dtype) ? 0 : -100, IsFloating(dtype) ? 1 : 100, dtype);
      const Tensor y = RunOp(kSum, {x}, {.dims = c.dims});
      const std::vector<double> sums = Fold(x, c.dims, 0, AddTo);
      if (dtype == DType::kF16 && sums[0] > 60000) continue;
      const Tensor expected = FromDoubles(y.shape(), sums, dtype);
      const double tolerance = dtype == DType::kF32    ? 1.2e-6
                               : dtype == DType::kF64  ? 1e-12
                               : dtype == DType::kBF16 ? 0x1p-8
                               : dtype == DType::kF16  ? 0x1p-10
                                                       : 0;
      EXPECT_TRUE(AllClose(y, expected, tolerance)) << x.TypeString() << " dims " << c.dims;
    }
  }
}

TEST(ReduceTest, ExtremaMatchANaiveFold) {
  for (const Case& c : kCases) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kI64}) {
      const Tensor x = Uniform(c.shape, -100, 100, dtype);
      const Tensor largest = RunOp(kReduceMax, {x}, {.dims = c.dims});
      const Tensor smallest = RunOp(kReduceMin, {x}, {.dims = c.dims});
      EXPECT_EQ(largest.ToVector<double>(), Fold(x, c.dims, -kInf, Larger))
          << x.TypeString() << " dims " << c.dims;
      EXPECT_EQ(smallest.ToVector<double>(), Fold(x, c.dims, kInf, Smaller))
          << x.TypeString() << " dims " << c.dims;
    }
  }
}

TEST(ReduceTest, MeanIsTheSumOverTheCount) {
  for (const Case& c : kCases) {
    const Tensor x = Uniform(c.shape, -1, 1, DType::kF64);
    std::vector<double> means = Fold(x, c.dims, 0, AddTo);
    const double count = static_cast<double>(x.num_elements()) / static_cast<double>(means.size());
    for (double& mean : means) mean /= count;
    const Tensor y = RunOp(kMean, {x}, {.dims = c.dims});
    EXPECT_TRUE(AllClose(y, FromDoubles(y.shape(), means, DType::kF64), 1e-12)) << x.TypeString();
  }
}

TEST(ReduceTest, MeanOfAPieceDividesByTheGlobalCount) {
  const Tensor x = FromDoubles({5}, {1, 2, 3, 4, 10}, DType::kF32);
  const std::vector<Tensor> first =
      RunSharded(kMean, {SplitPiece(x, 0, {0, 3})}, {WholeBox({})}, {.dims = 1});
  const std::vector<Tensor> second =
      RunSharded(kMean, {SplitPiece(x, 0, {3, 2})}, {WholeBox({})}, {.dims = 1});
  EXPECT_FLOAT_EQ(*first[0].data<float>(), 6.0f / 5);
  EXPECT_FLOAT_EQ(*second[0].data<float>(), 14.0f / 5);
}

TEST(ReduceTest, KeepdimsLeavesOnes) {
  const Tensor x = Uniform({2, 3, 4}, -1, 1);
  for (const Op<ReduceAttributes>* op : {&kSum, &kMean, &kReduceMax, &kReduceMin}) {
    const Tensor kept = RunOp(*op, {x}, {.dims = DimMaskOf({0, 2}), .keepdims = true});
    EXPECT_EQ(kept.shape(), Shape({1, 3, 1}));
    EXPECT_EQ(kept.ToVector<float>(), RunOp(*op, {x}, {.dims = DimMaskOf({0, 2})}).ToVector<float>())
        << op->name();
  }
}

TEST(ReduceTest, EmptyExtents) {
  const Tensor none = Uniform({3, 0}, 0, 1);
  EXPECT_EQ(RunOp(kSum, {none}, {.dims = 0b10}).ToVector<float>(), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(RunOp(kSum, {none}, {.dims = 0b01}).shape(), Shape({0}));
  EXPECT_EQ(RunOp(kSumSquares, {none}).ToVector<float>(), (std::vector<float>{0}));
  EXPECT_TRUE(std::isnan(RunOp(kMean, {none}, {.dims = 0b10}).ToVector<float>()[0]));
  EXPECT_EQ(RunOp(kReduceMax, {none}, {.dims = 0b01}).shape(), Shape({0}));
  // An empty piece of what is not empty: the identity.
  const Tensor x = Uniform({2, 3}, 0, 1);
  const std::vector<Piece> piece = {SplitPiece(x, 1, {3, 0})};
  EXPECT_EQ(RunSharded(kReduceMax, piece, {WholeBox({2})}, {.dims = 0b10})[0].ToVector<double>(),
            (std::vector<double>{-kInf, -kInf}));
  EXPECT_EQ(RunSharded(kReduceMin, piece, {WholeBox({2})}, {.dims = 0b10})[0].ToVector<double>(),
            (std::vector<double>{kInf, kInf}));
}

TEST(ReduceTest, LongF32SumsStayExact) {
  // A running f32 sum of a million tenths is off by 1%; runs of 16 and their fold are within 20 roundings.
  const int64_t n = 1000000;
  const Tensor x = FromDoubles({n}, std::vector<double>(n, 0.1));
  EXPECT_NEAR(*RunOp(kSum, {x}, {.dims = 1}).data<float>(), n * static_cast<double>(0.1f), 0.12);
  const Tensor columns = x.Reshape({n / 2, 2});
  EXPECT_NEAR(RunOp(kSum, {columns}, {.dims = 1}).ToVector<double>()[1], n / 2 * static_cast<double>(0.1f),
              0.01);
}

TEST(ReduceTest, NanWinsAnExtremum) {
  std::vector<double> values(100, 1);
  values[70] = kNan;
  values[71] = 5;
  const Tensor row = FromDoubles({100}, values);
  const Tensor column = FromDoubles({50, 2}, values);
  EXPECT_TRUE(std::isnan(*RunOp(kReduceMax, {row}, {.dims = 1}).data<float>()));
  EXPECT_TRUE(std::isnan(*RunOp(kReduceMin, {row}, {.dims = 1}).data<float>()));
  const std::vector<float> largest = RunOp(kReduceMax, {column}, {.dims = 1}).ToVector<float>();
  EXPECT_TRUE(std::isnan(largest[0]));
  EXPECT_EQ(largest[1], 5);
}

TEST(ReduceTest, SumSquaresAccumulatesInF32OrF64) {
  const Tensor x = Uniform({300, 333}, -2, 2);
  double expected = 0;
  for (double value : x.ToVector<double>()) expected += value * value;
  const Tensor y = RunOp(kSumSquares, {x});
  EXPECT_EQ(y.dtype(), DType::kF32);
  EXPECT_NEAR(*y.data<float>(), expected, 1e-6 * expected);
  EXPECT_EQ(RunOp(kSumSquares, {FromDoubles({2}, {3, 4}, DType::kF64)}).ToVector<double>(),
            (std::vector<double>{25}));
  // 300 squares of 16 are 76800: bf16 would stop counting, f16 overflow.
  for (DType half : {DType::kBF16, DType::kF16}) {
    const Tensor sum = RunOp(kSumSquares, {FromDoubles({300}, std::vector<double>(300, 16), half)});
    EXPECT_EQ(sum.dtype(), DType::kF32);
    EXPECT_EQ(*sum.data<float>(), 76800);
  }
}

TEST(ReduceTest, BitsDependNeitherOnThreadsNorOnStrides) {
  for (const Case& c : kCases) {
    const Tensor x = Uniform(c.shape, -1, 1);
    const Tensor y = RunOp(kSum, {x}, {.dims = c.dims}, {}, /*num_threads=*/1);
    EXPECT_TRUE(SameBits(RunOp(kSum, {x}, {.dims = c.dims}, {}, /*num_threads=*/2), y)) << x.TypeString();
  }
  const Tensor view = Uniform({40, 30, 20}, -1, 1).Transpose(0, 2);
  const Tensor copy = CloneTensor(view, MakeCpuAllocator());
  for (DimMask dims = 0; dims < 8; ++dims) {
    EXPECT_TRUE(SameBits(RunOp(kSum, {view}, {.dims = dims}), RunOp(kSum, {copy}, {.dims = dims}))) << dims;
  }
}

TEST(ReduceTest, SumToUndoesBroadcasting) {
  const Tensor x = FromDoubles({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  EXPECT_EQ(RunOp(kSumTo, {x}, {.shape = {3}}).ToVector<float>(), (std::vector<float>{22, 26, 30}));
  EXPECT_EQ(RunOp(kSumTo, {x}, {.shape = {2, 1}}).ToVector<float>(), (std::vector<float>{30, 48}));
  EXPECT_EQ(RunOp(kSumTo, {x}, {.shape = {}}).ToVector<float>(), (std::vector<float>{78}));
  EXPECT_EQ(RunOp(kSumTo, {x}, {.shape = {2, 2, 3}}).ToVector<float>(), x.ToVector<float>());
  // A piece of extent 1 where the whole has 2: dim 1 is still kept.
  const Piece piece = SplitPiece(x, 1, {1, 1});
  const Tensor part = RunSharded(kSumTo, {piece}, {SplitBox({2, 1}, 0, {1, 1})}, {.shape = {2, 1}})[0];
  EXPECT_EQ(part.ToVector<float>(), (std::vector<float>{48}));
}

TEST(ReduceTest, BroadcastToRepeats) {
  const Tensor x = FromDoubles({2, 1}, {3, 4});
  EXPECT_EQ(RunOp(kBroadcastTo, {x}, {.shape = {2, 3}}).ToVector<float>(),
            (std::vector<float>{3, 3, 3, 4, 4, 4}));
  EXPECT_EQ(RunOp(kBroadcastTo, {x}, {.shape = {2, 2, 2}, .missing_dims = 0b010}).ToVector<float>(),
            (std::vector<float>{3, 3, 3, 3, 4, 4, 4, 4}));
  const Tensor column = FromDoubles({2}, {3, 4});
  EXPECT_EQ(RunOp(kBroadcastTo, {column}, {.shape = {2, 3}, .missing_dims = 0b10}).ToVector<float>(),
            (std::vector<float>{3, 3, 3, 4, 4, 4}));
  const Tensor big =
      RunOp(kBroadcastTo, {FromDoubles({}, {7}, DType::kI64)}, {.shape = {300, 300}, .missing_dims = 0b11});
  EXPECT_EQ(big.ToVector<int64_t>(), std::vector<int64_t>(90000, 7));
}

TEST(ReduceTest, BackwardOfASumOfAPiecedGradient) {
  const Tensor x = Uniform({2, 3}, -1, 1);
  const Tensor dy = FromDoubles({2}, {5, 7});
  EXPECT_EQ(Backward(kSum, {x}, {dy}, {.dims = 0b10})[0].ToVector<float>(),
            (std::vector<float>{5, 5, 5, 7, 7, 7}));
  const std::vector<float> mean = Backward(kMean, {x}, {dy}, {.dims = 0b10})[0].ToVector<float>();
  EXPECT_FLOAT_EQ(mean[0], 5.0f / 3);
  EXPECT_FLOAT_EQ(mean[5], 7.0f / 3);
}

TEST(ReduceTest, BackwardOfAnExtremumSharesAmongTies) {
  const Tensor x = FromDoubles({2, 4}, {1, 6, 6, 2, 3, 0, -1, 3});
  const Tensor dy = FromDoubles({2}, {10, 8});
  EXPECT_EQ(Backward(kReduceMax, {x}, {dy}, {.dims = 0b10})[0].ToVector<float>(),
            (std::vector<float>{0, 5, 5, 0, 4, 0, 0, 4}));
  const Tensor kept = FromDoubles({1, 4}, {1, 2, 3, 4});
  EXPECT_EQ(Backward(kReduceMin, {x}, {kept}, {.dims = 0b01, .keepdims = true})[0].ToVector<float>(),
            (std::vector<float>{1, 0, 0, 4, 0, 2, 3, 0}));
}

// More ties than f16 has numbers for.
TEST(ReduceTest, BackwardOfAnExtremumCountsBeyondF16) {
  const int64_t n = 1 << 17;
  const Tensor x = FromDoubles({n}, std::vector<double>(n, 3), DType::kF16);
  const Tensor dy = FromDoubles({}, {1 << 15}, DType::kF16);
  for (const auto* op : {&kReduceMax, &kReduceMin}) {
    EXPECT_EQ(Backward(*op, {x}, {dy}, {.dims = 1})[0].ToVector<double>(), std::vector<double>(n, 0.25))
        << op->name();
  }
}

TEST(ReduceTest, MisuseIsNamed) {
  const Tensor x = Uniform({2, 3}, 0, 1);
  const Tensor empty = Uniform({2, 0}, 0, 1);
  const Tensor u8 = FromDoubles({2}, {1, 2}, DType::kU8);
  EXPECT_EQ(MessageOf([&] { RunOp(kSum, {x}, {.dims = 0b100}); }), "sum: dims name one outside f32[2, 3]");
  EXPECT_EQ(MessageOf([&] { RunOp(kSum, {u8}, {.dims = 1}); }),
            "sum: expected a floating, i32 or i64 dtype, got u8[2]");
  EXPECT_EQ(MessageOf([&] { RunOp(kReduceMax, {empty}, {.dims = 0b10}); }),
            "reduce_max: dim 1 of f32[2, 0] is empty and has no extremum");
  EXPECT_EQ(MessageOf([&] { RunOp(kSumTo, {x}, {.shape = {2}}); }),
            "sum_to: f32[2, 3] is no broadcast of [2]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kBroadcastTo, {x}, {.shape = {2, 4}});
            }),
            "broadcast_to: f32[2, 3] does not broadcast to [2, 4] without the missing dims");
}

TEST(ReduceTest, ExtremaOfBoolsAreAnyAndAll) {
  const Tensor x = FromDoubles({3, 2}, {0, 0, 0, 1, 1, 1}, DType::kBool);
  EXPECT_EQ(RunOp(kReduceMax, {x}, {.dims = 0b10}).ToVector<int>(), (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(RunOp(kReduceMin, {x}, {.dims = 0b10}).ToVector<int>(), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(RunOp(kReduceMin, {x}, {.dims = 0b01}).ToVector<int>(), (std::vector<int>{0, 0}));
  const Tensor none = FromDoubles({2, 0}, {}, DType::kBool);
  EXPECT_EQ(RunOp(kReduceMax, {none}, {.dims = 0b10}).ToVector<int>(), (std::vector<int>{0, 0}));
  EXPECT_EQ(RunOp(kReduceMin, {none}, {.dims = 0b10}).ToVector<int>(), (std::vector<int>{1, 1}));
  const Tensor bytes = FromDoubles({2, 2}, {200, 3, 0, 255}, DType::kU8);
  EXPECT_EQ(RunOp(kReduceMax, {bytes}, {.dims = 0b10}).ToVector<int>(), (std::vector<int>{200, 255}));
  EXPECT_EQ(RunOp(kReduceMin, {bytes}, {.dims = 0b11}).ToVector<int>(), (std::vector<int>{0}));
}

}  // namespace
}  // namespace weft
