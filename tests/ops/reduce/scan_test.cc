#include "ops/reduce/scan.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/reduce/cofactor.h"
#include "ops/reduce/cum_prod.h"
#include "ops/reduce/reduce.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/check_gradients.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor F64(const Shape& shape, const std::vector<double>& values) {
  return Tensor::FromValues<double>(shape, values);
}

// y_i = fold of the x_j that `takes(j, i)` says, as x's dtype.
template <class Takes>
Tensor Along(const Tensor& x, int dim, bool product, const Takes& takes) {
  const std::vector<double> values = x.ToVector<double>();
  std::vector<double> result(values.size());
  for (const std::vector<int64_t>& row : ElementsAlong(x.shape(), 1u << dim)) {
    for (size_t i = 0; i < row.size(); ++i) {
      long double sum = product ? 1 : 0;
      for (size_t j = 0; j < row.size(); ++j) {
        if (!takes(j, i)) continue;
        product ? sum *= values[row[j]] : sum += values[row[j]];
      }
      result[row[i]] = static_cast<double>(sum);
    }
  }
  return CastTensor(F64(x.shape(), result), x.dtype(), MakeCpuAllocator());
}

const Shape kShapes[] = {{1}, {7}, {2, 5, 3}, {18, 33}, {2, 300}, {0, 3}, {3, 0}};

TEST(CumSumTest, MatchesALoop) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64}) {
    for (const Shape& shape : kShapes) {
      std::mt19937_64 random(shape.num_elements() + 1);
      const Tensor x = RandomTensor({{dtype, shape}, -9, 9}, random);
      for (int dim = 0; dim < shape.ndim(); ++dim) {
        // Summed wide and rounded once, so bf16 agrees to its last bit but for ties.
        const double tolerance = dtype == DType::kF32    ? 1e-6
                                 : dtype == DType::kF64  ? 1e-13
                                 : dtype == DType::kBF16 ? 0x1p-8
                                 : dtype == DType::kF16  ? 0x1p-11
                                                         : 0;
        const Tensor forward = Along(x, dim, false, [](size_t j, size_t i) { return j <= i; });
        const Tensor reverse = Along(x, dim, false, [](size_t j, size_t i) { return j >= i; });
        EXPECT_TRUE(AllClose(RunOp(kCumSum, {x}, {.dim = dim}), forward, tolerance)) << dim;
        EXPECT_TRUE(AllClose(RunOp(kCumSum, {x}, {.dim = dim, .reverse = true}), reverse, tolerance)) << dim;
        EXPECT_TRUE(SameBits(RunOp(kCumSum, {x}, {.dim = dim}, {}, /*num_threads=*/3),
                             RunOp(kCumSum, {x}, {.dim = dim})));
      }
    }
  }
}

TEST(CumSumTest, IntegersWrapAndInfinitiesStay) {
  const Tensor x = Tensor::FromValues<int32_t>({3}, {std::numeric_limits<int32_t>::max(), 1, 5});
  EXPECT_THAT(RunOp(kCumSum, {x}, {.dim = 0}).ToVector<int32_t>(),
              ElementsAre(std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min(),
                          std::numeric_limits<int32_t>::min() + 5));
  const std::vector<double> y =
      RunOp(kCumSum, {F64({4}, {1, kInf, 2, -kInf})}, {.dim = 0}).ToVector<double>();
  EXPECT_EQ(y[0], 1);
  EXPECT_EQ(y[2], kInf);
  EXPECT_TRUE(std::isnan(y[3]));
}

TEST(CumSumTest, TakesAnyStrides) {
  const Tensor x = F64({2, 3}, {1, 2, 3, 10, 20, 30});
  EXPECT_THAT(RunOp(kCumSum, {x.Transpose(0, 1)}, {.dim = 0}).ToVector<double>(),
              ElementsAre(1, 10, 3, 30, 6, 60));
  EXPECT_THAT(RunOp(kCumSum, {F64({2, 1}, {1, 5}).Expand({2, 3})}, {.dim = 1}).ToVector<double>(),
              ElementsAre(1, 2, 3, 5, 10, 15));
}

// The steps of the decomposition, by hand: uneven pieces, an empty one among them.
TEST(CumSumTest, PiecesFromTheirOffsetsMakeTheWhole) {
  const std::vector<Range> ranges = {{0, 2}, {2, 0}, {2, 3}};
  const auto check = [&](DType dtype, bool reverse) {
    const Tensor x = CastTensor(F64({2, 5}, {1, 2, 3, 4, 5, -1, 7, 0, 2, 2}), dtype, MakeCpuAllocator());
    const ScanAttributes along = {.dim = 1, .reverse = reverse};
    const Tensor totals = Tensor::Empty(MakeCpuAllocator(), IsFloating(dtype) ? DType::kF64 : dtype, {2, 3});
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Tensor piece = x.Slice(1, ranges[i].offset, ranges[i].size);
      CopyTensor(RunOp(kPieceTotal, {piece}, along), totals.Slice(1, static_cast<int64_t>(i), 1));
    }
    const Tensor offsets = RunOp(kPieceOffsets, {totals}, along);
    EXPECT_THAT(offsets.ToVector<double>(),
                reverse ? ElementsAre(12, 12, 0, 4, 4, 0) : ElementsAre(0, 3, 3, 0, 6, 6));
    const Tensor whole = RunOp(kCumSum, {x}, along);
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Tensor piece = x.Slice(1, ranges[i].offset, ranges[i].size);
      const Tensor y = RunOp(kCumSumFrom, {piece, offsets.Slice(1, static_cast<int64_t>(i), 1)}, along);
      EXPECT_TRUE(AllClose(y, whole.Slice(1, ranges[i].offset, ranges[i].size), 0)) << reverse << " " << i;
    }
  };
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kI64}) {
    for (bool reverse : {false, true}) check(dtype, reverse);
  }
}

// 100,003 elements, in several parts: a bf16 total would be off by thousands.
TEST(CumSumTest, TotalsOfFloatsAreF64) {
  const Tensor x =
      CastTensor(F64({1, 100003}, std::vector<double>(100003, 1.0)), DType::kBF16, MakeCpuAllocator());
  const Tensor total = RunOp(kPieceTotal, {x}, {.dim = 1});
  EXPECT_EQ(total.TypeString(), "f64[1, 1]");
  EXPECT_EQ(total.ToVector<double>()[0], 100003);
  // No f32 has the digits of this one.
  const Tensor wide = Tensor::FromValues<float>({2}, {1e8, 1});
  EXPECT_EQ(RunOp(kPieceTotal, {wide}, {.dim = 0}).ToVector<double>()[0], 100000001);
}

TEST(CofactorTest, IsTheProductOfTheOthers) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : kShapes) {
      std::mt19937_64 random(shape.num_elements() + 2);
      const Tensor x = RandomTensor({{dtype, shape}, -1.1, 1.1}, random);
      for (int dim = 0; dim < shape.ndim(); ++dim) {
        const Tensor expected = Along(x, dim, true, [](size_t j, size_t i) { return j != i; });
        EXPECT_TRUE(AllClose(RunOp(kCofactor, {x}, {.dim = dim}), expected, Tolerance(dtype)))
            << x.TypeString();
      }
    }
  }
  EXPECT_THAT(RunOp(kCofactor, {F64({3}, {2, 0, 5})}, {.dim = 0}).ToVector<double>(), ElementsAre(0, 10, 0));
  EXPECT_THAT(RunOp(kCofactor, {F64({3}, {0, 0, 5})}, {.dim = 0}).ToVector<double>(), ElementsAre(0, 0, 0));
  EXPECT_THAT(RunOp(kCofactor, {F64({3}, {kInf, 4, 5})}, {.dim = 0}).ToVector<double>(),
              ElementsAre(20, kInf, kInf));
  EXPECT_THAT(RunOp(kCofactor, {F64({1}, {0})}, {.dim = 0}).ToVector<double>(), ElementsAre(1));
}

TEST(ProdTest, MatchesALoop) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI32, DType::kI64}) {
    const Tensor x = [&] {
      std::mt19937_64 random(3);
      return RandomTensor({{dtype, {3, 4, 5}}, IsFloating(dtype) ? 0.5 : -3, IsFloating(dtype) ? 1.6 : 4},
                          random);
    }();
    const std::vector<double> values = x.ToVector<double>();
    for (DimMask dims : {0b001u, 0b010u, 0b110u, 0b101u}) {
      std::vector<double> expected;
      for (const std::vector<int64_t>& row : ElementsAlong(x.shape(), dims)) {
        expected.push_back(1);
        for (int64_t i : row) expected.back() *= values[i];
      }
      const Tensor y = RunOp(kProd, {x}, {.dims = dims});
      const Tensor naive = CastTensor(F64(y.shape(), expected), dtype, MakeCpuAllocator());
      EXPECT_TRUE(AllClose(y, naive, dtype == DType::kF32 ? 1e-6 : Tolerance(dtype))) << x.TypeString();
    }
  }
  EXPECT_THAT(RunOp(kProd, {F64({2, 0}, {})}, {.dims = 0b10}).ToVector<double>(), ElementsAre(1, 1));
  // In double: the running product leaves the range of float.
  const Tensor wide = Tensor::FromValues<float>({4}, {1e30f, 1e30f, 1e-30f, 1e-30f});
  EXPECT_FLOAT_EQ(RunOp(kProd, {wide}, {.dims = 1}).ToVector<float>()[0], 1);
}

TEST(ProdTest, GradientIsRightWhereElementsAreZero) {
  const Tensor x = F64({2, 2, 2}, {2, 0, 3, 5, 0, 7, 0, 11});
  const Tensor dy = F64({2}, {10, 100});
  const std::vector<Tensor> dx = Backward(kProd, {x}, {dy}, {.dims = 0b110});
  EXPECT_THAT(dx[0].ToVector<double>(), ElementsAre(0, 300, 0, 0, 0, 0, 0, 0));
  // One zero in all: its cofactor alone is not 0, over a dim and over both.
  const Tensor one = F64({2, 2}, {0, 3, 5, 7});
  EXPECT_THAT(
      Backward(kProd, {one}, {F64({1, 1}, {2})}, {.dims = 0b11, .keepdims = true})[0].ToVector<double>(),
      ElementsAre(210, 0, 0, 0));
  EXPECT_THAT(Backward(kProd, {one}, {F64({2}, {1, 2})}, {.dims = 0b01})[0].ToVector<double>(),
              ElementsAre(5, 14, 0, 6));
}

// The product of the others leaves the range of the dtype, and dy brings it back.
TEST(ProdTest, GradientOverOneDimKeepsItsRange) {
  const auto gradient = [](DType dtype, const std::vector<double>& x, double dy) {
    const Tensor operand = CastTensor(F64({3}, x), dtype, MakeCpuAllocator());
    const Tensor arriving = CastTensor(F64({}, {dy}), dtype, MakeCpuAllocator());
    const Tensor dx = Backward(kProd, {operand}, {arriving}, {.dims = 0b1})[0];
    EXPECT_EQ(dx.dtype(), dtype);
    return dx.ToVector<double>();
  };
  const std::vector<double> large = {0x1p10, 0x1p7, 0x1p-3}, small = {0x1p-13, 0x1p-13, 0x1p6};
  EXPECT_THAT(gradient(DType::kF16, large, 0x1p-3), ElementsAre(2, 16, 0x1p14));
  EXPECT_THAT(gradient(DType::kF16, large, 0), ElementsAre(0, 0, 0));
  EXPECT_THAT(gradient(DType::kF16, small, 0x1p15), ElementsAre(256, 256, 0x1p-11));
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    EXPECT_THAT(gradient(dtype, {0x1p70, 0x1p70, 0x1p-40}, 0x1p-40), ElementsAre(0x1p-10, 0x1p-10, 0x1p100));
  }
}

// The product of a column leaves the range of the dtype, and that of the rows comes back into it.
TEST(ProdTest, GradientOverSeveralDimsKeepsItsRange) {
  const Tensor x = Tensor::FromValues<float>({2, 2}, {1e30f, 1e-30f, 1e30f, 1e-30f});
  const Tensor one = Tensor::FromValues<float>({}, {1});
  const std::vector<float> dx = Backward(kProd, {x}, {one}, {.dims = 0b11})[0].ToVector<float>();
  for (size_t i : {0, 2}) {
    EXPECT_FLOAT_EQ(dx[i], 1e-30f);
    EXPECT_FLOAT_EQ(dx[i + 1], 1e30f);
  }
  std::vector<double> values, others;
  for (int row = 0; row < 17; ++row) {
    values.insert(values.end(), {2, 0.5});
    others.insert(others.end(), {0.5, 2});
  }
  const auto half = [](const Tensor& t) { return CastTensor(t, DType::kF16, MakeCpuAllocator()); };
  const Tensor of_halves = Backward(kProd, {half(F64({17, 2}, values))}, {half(F64({1, 1}, {1}))},
                                    {.dims = 0b11, .keepdims = true})[0];
  EXPECT_EQ(of_halves.TypeString(), "f16[17, 2]");
  EXPECT_EQ(of_halves.ToVector<double>(), others);
}

TEST(CumProdTest, MatchesALoop) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI64}) {
    for (const Shape& shape : kShapes) {
      std::mt19937_64 random(shape.num_elements() + 3);
      const Tensor x =
          RandomTensor({{dtype, shape}, IsFloating(dtype) ? -1.2 : -1, IsFloating(dtype) ? 1.2 : 2}, random);
      for (int dim = 0; dim < shape.ndim(); ++dim) {
        const Tensor expected = Along(x, dim, true, [](size_t j, size_t i) { return j <= i; });
        EXPECT_TRUE(AllClose(RunOp(kCumProd, {x}, {.dim = dim}), expected, Tolerance(dtype)))
            << x.TypeString() << dim;
        EXPECT_TRUE(SameBits(RunOp(kCumProd, {x}, {.dim = dim}, {}, /*num_threads=*/3),
                             RunOp(kCumProd, {x}, {.dim = dim})));
      }
    }
  }
  const Tensor large = Tensor::FromValues<int32_t>({3}, {1 << 30, 4, 3});
  EXPECT_THAT(RunOp(kCumProd, {large}, {.dim = 0}).ToVector<int32_t>(), ElementsAre(1 << 30, 0, 0));
  // In double: the running product leaves the range of float.
  const Tensor wide = Tensor::FromValues<float>({4}, {1e30f, 1e30f, 1e-30f, 1e-30f});
  EXPECT_FLOAT_EQ(RunOp(kCumProd, {wide}, {.dim = 0}).ToVector<float>()[3], 1);
}

// The steps of the decomposition, by hand, of floats and of integers.
TEST(CumProdTest, PiecesFromTheirOffsetsMakeTheWhole) {
  for (DType dtype : {DType::kF32, DType::kI64}) {
    const Tensor x = CastTensor(F64({2, 5}, {1, 2, 3, 4, 5, -1, 7, 0, 2, 2}), dtype, MakeCpuAllocator());
    const DType wide = dtype == DType::kI64 ? dtype : DType::kF64;
    const std::vector<Range> ranges = {{0, 2}, {2, 0}, {2, 3}};
    const Tensor totals = Tensor::Empty(MakeCpuAllocator(), wide, {2, 3});
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Tensor piece = x.Slice(1, ranges[i].offset, ranges[i].size);
      const Tensor total = dtype == DType::kI64 ? RunOp(kProd, {piece}, {.dims = 0b10, .keepdims = true})
                                                : RunOp(kPieceProduct, {piece}, {.dim = 1});
      CopyTensor(total, totals.Slice(1, static_cast<int64_t>(i), 1));
    }
    const Tensor offsets = RunOp(kProductOffsets, {totals}, {.dim = 1});
    EXPECT_THAT(offsets.ToVector<double>(), ElementsAre(1, 2, 2, 1, -7, -7));
    const Tensor whole = RunOp(kCumProd, {x}, {.dim = 1});
    for (size_t i = 0; i < ranges.size(); ++i) {
      const Tensor piece = x.Slice(1, ranges[i].offset, ranges[i].size);
      const Tensor y = RunOp(kCumProdFrom, {piece, offsets.Slice(1, static_cast<int64_t>(i), 1)}, {.dim = 1});
      EXPECT_TRUE(AllClose(y, whole.Slice(1, ranges[i].offset, ranges[i].size), 0)) << i;
    }
  }
}

// d(x0 + 10 x0 x1 + 100 x0 x1 x2 + 1000 x0 x1 x2 x3), by hand.
TEST(CumProdTest, GradientIsRightWhereElementsAreZero) {
  const Tensor dy = F64({4}, {1, 10, 100, 1000});
  EXPECT_THAT(Backward(kCumProd, {F64({4}, {2, 0, 3, 5})}, {dy}, {.dim = 0})[0].ToVector<double>(),
              ElementsAre(1, 2 * (10 + 300 + 15000), 0, 0));
  EXPECT_THAT(Backward(kCumProd, {F64({4}, {2, 0, 0, 5})}, {dy}, {.dim = 0})[0].ToVector<double>(),
              ElementsAre(1, 20, 0, 0));
  EXPECT_THAT(Backward(kCumProd, {F64({4}, {0, 3, 0, 5})}, {dy}, {.dim = 0})[0].ToVector<double>(),
              ElementsAre(31, 0, 0, 0));
}

TEST(ScanTest, RefusesMisuse) {
  const Tensor x = F64({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kCumSum, {x}, {.dim = 2}); }),
            "cumsum: there is no dim 2 in f64[2, 3]");
  EXPECT_EQ(InvalidArgumentMessage([] {
              RunOp(kCumSum, {Tensor::FromValues<uint8_t>({2}, {1, 2})}, {.dim = 0});
            }),
            "cumsum: expected a floating, i32 or i64 dtype, got u8[2]");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kCumSumFrom, {x, F64({2}, {1, 2})}, {.dim = 1});
            }),
            "cumsum_from: offset must be f64[2, 1], got f64[2]");
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kCumProd, {x}, {.dim = -1}); }),
            "cumprod: there is no dim -1 in f64[2, 3]");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kCumProdFrom, {x, F64({2}, {1, 2})}, {.dim = 1});
            }),
            "cumprod_from: offset must be f64[2, 1], got f64[2]");
  EXPECT_EQ(
      InvalidArgumentMessage([] { RunOp(kCofactor, {Tensor::FromValues<int32_t>({1}, {1})}, {.dim = 0}); }),
      "cofactor: expected a floating dtype, got i32[1]");
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kProd, {x}, {.dims = 0b100}); }),
            "prod: dims name one outside f64[2, 3]");
}

}  // namespace
}  // namespace weft
