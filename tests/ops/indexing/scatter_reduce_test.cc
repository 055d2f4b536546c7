#include "ops/indexing/scatter_reduce.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

constexpr ReduceOp kReductions[] = {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kProduct};

Tensor F64(const Shape& shape, const std::vector<double>& values) {
  return Tensor::FromValues<double>(shape, values);
}
Tensor As(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(F64(shape, values), dtype, MakeCpuAllocator());
}
Tensor Index(const Shape& shape, const std::vector<int64_t>& values) {
  return Tensor::FromValues<int64_t>(shape, values);
}

std::vector<double> Draw(int64_t count, int low, int high, std::mt19937_64& random) {
  std::vector<double> values(count);
  for (double& value : values) value = low + static_cast<int>(random() % (high - low));
  return values;
}

double Reduced(ReduceOp reduce, double a, double b) {
  return reduce == ReduceOp::kProduct ? a * b : reduce == ReduceOp::kMax ? std::max(a, b) : std::min(a, b);
}

TEST(ScatterReduceTest, AgreesWithALoop) {
  std::mt19937_64 random(3);
  for (const Shape& s : {Shape{2, 5, 3}, Shape{1, 1, 1}, Shape{2, 4, 65}, Shape{2, 0, 3}, Shape{2, 3, 0}}) {
    for (int64_t m : {0, 1, 6}) {
      if (s[1] == 0 && m > 0) continue;
      const Shape terms = {s[0], m, s[2]};
      const std::vector<double> x = Draw(s.num_elements(), -2, 3, random);
      const std::vector<double> src = Draw(terms.num_elements(), -2, 3, random);
      const std::vector<double> at =
          Draw(terms.num_elements(), 0, std::max<int>(1, static_cast<int>(s[1])), random);
      for (ReduceOp reduce : kReductions) {
        std::vector<double> expected = x;
        for (int64_t i = 0; i < terms.num_elements(); ++i) {
          const int64_t k = i % s[2];
          const int64_t o = i / (m * s[2]);
          double& y = expected[(o * s[1] + static_cast<int64_t>(at[i])) * s[2] + k];
          y = Reduced(reduce, y, src[i]);
        }
        for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64}) {
          const std::vector<Tensor> operands = {As(dtype, s, x), As(DType::kI64, terms, at),
                                                As(dtype, terms, src)};
          const Tensor y = RunOp(kScatterReduce, operands, {.dim = 1, .reduce = reduce});
          EXPECT_TRUE(AllClose(y, As(dtype, s, expected), 0))
              << s << " " << m << " " << dtype << " " << reduce;
          EXPECT_TRUE(SameBits(
              y, RunOp(kScatterReduce, operands, {.dim = 1, .reduce = reduce}, {}, /*num_threads=*/3)));
        }
      }
    }
  }
}

TEST(ScatterReduceTest, NaNWinsAnExtremum) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (ReduceOp reduce : {ReduceOp::kMax, ReduceOp::kMin}) {
    const Tensor y =
        RunOp(kScatterReduce, {F64({3}, {nan, 1, 2}), Index({4}, {0, 1, 2, 1}), F64({4}, {5, nan, 1, 3})},
              {.dim = 0, .reduce = reduce});
    EXPECT_TRUE(std::isnan(y.ToVector<double>()[0]));
    EXPECT_TRUE(std::isnan(y.ToVector<double>()[1]));
    EXPECT_EQ(y.ToVector<double>()[2], reduce == ReduceOp::kMax ? 2 : 1);
  }
}

// Pieces of the index reduce to the whole: x goes into the first alone. The extrema of i64 hold the neutral
// elements that no double is.
TEST(ScatterReduceTest, PiecesOfTheIndexReduceToTheWhole) {
  for (DType dtype : {DType::kF64, DType::kI64, DType::kBF16}) {
    const Tensor x = As(dtype, {2, 3}, {3, -1, 2, 1, 5, -2});
    const Tensor index = Index({2, 4}, {0, 2, 2, 0, 1, 1, 0, 1});
    const Tensor src = As(dtype, {2, 4}, {2, -3, 2, 4, 1, 6, -7, 1});
    for (ReduceOp reduce : kReductions) {
      const ScatterReduceAttributes a = {.dim = 1, .reduce = reduce};
      std::vector<Tensor> parts;
      for (const Range& range : {Range{0, 2}, Range{2, 2}, Range{4, 0}}) {
        parts.push_back(RunSharded(kScatterReduce,
                                   {WholePiece(x), SplitPiece(index, 1, range), SplitPiece(src, 1, range)},
                                   {WholeBox(x.shape())}, a)[0]);
      }
      AccumulateTensor(parts[1], parts[0], reduce);
      AccumulateTensor(parts[2], parts[0], reduce);
      EXPECT_TRUE(AllClose(parts[0], RunOp(kScatterReduce, {x, index, src}, a), 0)) << dtype << reduce;
      for (const Range& range : {Range{0, 1}, Range{1, 2}}) {
        const Tensor piece =
            RunSharded(kScatterReduce, {SplitPiece(x, 1, range), WholePiece(index), WholePiece(src)},
                       {SplitBox(x.shape(), 1, range)}, a)[0];
        const Tensor whole = RunOp(kScatterReduce, {x, index, src}, a);
        EXPECT_TRUE(AllClose(piece, whole.Slice(1, range.offset, range.size), 0)) << dtype << reduce;
      }
    }
  }
}

TEST(ScatterReduceTest, GradientsOfTiesAndZeros) {
  const Tensor index = Index({4}, {0, 0, 1, 1});
  const auto gradients = [&](ReduceOp reduce, const std::vector<double>& x, const std::vector<double>& src) {
    const std::vector<Tensor> all = Backward(kScatterReduce, {F64({3}, x), index, F64({4}, src)},
                                             {F64({3}, {6, 60, 600})}, {.dim = 0, .reduce = reduce});
    std::vector<double> joined = all[0].ToVector<double>();
    for (double g : all[2].ToVector<double>()) joined.push_back(g);
    return joined;
  };
  // x first, then src: three share the first place, src alone has the second, nothing reaches the third.
  EXPECT_THAT(gradients(ReduceOp::kMax, {2, 1, 9}, {2, 2, 4, 3}), ElementsAre(2, 0, 600, 2, 2, 60, 0));
  EXPECT_THAT(gradients(ReduceOp::kMin, {2, 3, 9}, {2, 5, 3, 4}), ElementsAre(3, 30, 600, 3, 0, 30, 0));
  // One zero at the first place, two at the second.
  EXPECT_THAT(gradients(ReduceOp::kProduct, {2, 0, 9}, {0, 3, 0, 5}), ElementsAre(0, 0, 600, 36, 0, 0, 0));
  EXPECT_THAT(gradients(ReduceOp::kProduct, {2, 1, 0}, {2, 3, 4, 5}),
              ElementsAre(36, 1200, 600, 36, 24, 300, 240));
}

// More ties than f16 has numbers for.
TEST(ScatterReduceTest, CountsTiesBeyondF16) {
  const int64_t n = 1 << 17;
  const auto half = [](const Tensor& t) { return CastTensor(t, DType::kF16, MakeCpuAllocator()); };
  const Tensor src = half(F64({n}, std::vector<double>(n, 3)));
  const std::vector<Tensor> all =
      Backward(kScatterReduce, {half(F64({1}, {0})), Index({n}, std::vector<int64_t>(n, 0)), src},
               {half(F64({1}, {1 << 15}))}, {.dim = 0, .reduce = ReduceOp::kMax});
  EXPECT_EQ(all[2].TypeString(), "f16[131072]");
  EXPECT_EQ(all[2].ToVector<double>(), std::vector<double>(n, 0.25));
}

TEST(ScatterReduceTest, RefusesMisuse) {
  const Tensor x = F64({2, 2}, {1, 2, 3, 4});
  const ScatterReduceAttributes max = {.dim = 0};
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kScatterReduce, {x, Index({1, 2}, {0, 2}), F64({1, 2}, {1, 2})}, max);
            }),
            "scatter_reduce: index 2 at [0, 1] is outside [0, 2)");
  const auto infer = [](const TensorTypes& types, const ScatterReduceAttributes& a) {
    return InvalidArgumentMessage([&] { kScatterReduce.Infer(types, &a); });
  };
  const TensorType f = {DType::kF32, {2, 3}};
  const TensorType i = {DType::kI64, {1, 3}};
  EXPECT_EQ(infer({f, i, {DType::kF32, {1, 3}}}, {.dim = 0, .reduce = ReduceOp::kSum}),
            "scatter_reduce: expected max, min or product, got sum");
  EXPECT_EQ(infer({f, f, f}, max), "scatter_reduce: the index must be i32 or i64, got f32[2, 3]");
  EXPECT_EQ(
      infer({f, {DType::kI64, {1, 2}}, f}, max),
      "scatter_reduce: the index must have the shape of x but for dim 0; index is i64[1, 2], x is f32[2, 3]");
  EXPECT_EQ(infer({f, i, {DType::kF64, {1, 3}}}, max),
            "scatter_reduce: src must be f32[1, 3], got f64[1, 3]");
  EXPECT_EQ(infer({{DType::kBool, {2}}, {DType::kI64, {2}}, {DType::kBool, {2}}}, max),
            "scatter_reduce: cannot reduce bool[2]");
}

}  // namespace
}  // namespace weft
