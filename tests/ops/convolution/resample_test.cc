#include "ops/convolution/resample.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/convolution/resample_weights.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

constexpr ResampleMode kModes[] = {ResampleMode::kNearest, ResampleMode::kNearestExact, ResampleMode::kLinear,
                                   ResampleMode::kCubic, ResampleMode::kArea};

Tensor F64(const Shape& shape, const std::vector<double>& values) {
  return Tensor::FromValues<double>(shape, values);
}

// All resamplings of small extents.
template <class Visit>
void ForEachResampling(const Visit& visit) {
  for (ResampleMode mode : kModes) {
    for (bool align : {false, true}) {
      if (align && mode != ResampleMode::kLinear && mode != ResampleMode::kCubic) continue;
      for (double scale : {0.0, 0.7, 2.5}) {
        if (scale != 0 && mode == ResampleMode::kArea) continue;
        for (int64_t in = 1; in <= 9; ++in) {
          for (int64_t out = 1; out <= 13; ++out) {
            visit(ResampleAttributes{.extent = out, .mode = mode, .align_corners = align, .scale = scale},
                  in);
          }
        }
      }
    }
  }
}

// Weights of a row sum to 1 and lie within its band; a column's rows are those that name it.
TEST(ResampleTest, RowsAndColumnsAreOfOneMatrix) {
  ForEachResampling([](const ResampleAttributes& a, int64_t in) {
    const ResampleWeights weights = MakeResampleWeights(a, in, a.extent);
    for (int64_t i = 0; i < a.extent; ++i) {
      const ResampleWeights::Band row = weights.Row(i);
      ASSERT_GE(row.first, 0);
      ASSERT_LT(row.last, in);
      double sum = 0;
      for (int64_t j = 0; j < in; ++j) {
        const double weight = weights.Weight(i, j);
        sum += weight;
        const ResampleWeights::Band column = weights.Column(j);
        EXPECT_EQ(j >= row.first && j <= row.last, i >= column.first && i <= column.last)
            << static_cast<int>(a.mode) << " " << in << " to " << a.extent << " at " << i << ", " << j;
        if (j < row.first || j > row.last) {
          EXPECT_EQ(weight, 0);
        }
      }
      EXPECT_NEAR(sum, 1, 1e-14);
    }
  });
}

TEST(ResampleTest, ValuesByHand) {
  const Tensor x = F64({4}, {1, 2, 4, 8});
  const auto y = [&](const ResampleAttributes& a) { return RunOp(kResample, {x}, a).ToVector<double>(); };
  using M = ResampleMode;
  EXPECT_THAT(y({.extent = 6, .mode = M::kNearest}), ElementsAre(1, 1, 2, 4, 4, 8));
  EXPECT_THAT(y({.extent = 3, .mode = M::kNearestExact}), ElementsAre(1, 4, 8));
  EXPECT_THAT(y({.extent = 8, .mode = M::kLinear}), ElementsAre(1, 1.25, 1.75, 2.5, 3.5, 5, 7, 8));
  EXPECT_THAT(y({.extent = 7, .mode = M::kLinear, .align_corners = true}),
              ElementsAre(1, 1.5, 2, 3, 4, 6, 8));
  EXPECT_THAT(y({.extent = 2, .mode = M::kArea}), ElementsAre(1.5, 6));
  EXPECT_THAT(y({.extent = 4, .mode = M::kCubic, .align_corners = true}), ElementsAre(1, 2, 4, 8));
}

// By the definition of a transpose, on unit vectors: dx_j = sum over i of w_ij dy_i.
TEST(ResampleTest, GradientIsTheTranspose) {
  ForEachResampling([](const ResampleAttributes& a, int64_t in) {
    std::vector<double> dy(a.extent);
    for (size_t i = 0; i < dy.size(); ++i) dy[i] = 1.0 / static_cast<double>(i + 2);
    ResampleAttributes back = a;
    back.extent = in;
    const std::vector<double> dx = RunOp(kResampleGrad, {F64({a.extent}, dy)}, back).ToVector<double>();
    for (int64_t j = 0; j < in; ++j) {
      std::vector<double> unit(in, 0.0);
      unit[j] = 1;
      const std::vector<double> column = RunOp(kResample, {F64({in}, unit)}, a).ToVector<double>();
      double expected = 0;
      for (size_t i = 0; i < dy.size(); ++i) expected += column[i] * dy[i];
      EXPECT_NEAR(dx[j], expected, 1e-13) << static_cast<int>(a.mode) << " " << in << " to " << a.extent;
    }
  });
}

// Terms of a split dim add up to the bits of the whole, -0 and infinities included.
TEST(ResampleTest, PiecesAddUp) {
  const Tensor x = Tensor::FromValues<float>({2, 3}, {-0.0f, 1, INFINITY, 2, -0.0f, -3});
  const Tensor left = RunSharded(kResample, {SplitPiece(x, 1, {0, 2})}, {WholeBox({2, 6})},
                                 {.dim = 1, .extent = 6, .mode = ResampleMode::kNearest})[0];
  const Tensor right = RunSharded(kResample, {SplitPiece(x, 1, {2, 1})}, {WholeBox({2, 6})},
                                  {.dim = 1, .extent = 6, .mode = ResampleMode::kNearest})[0];
  AccumulateTensor(right, left, ReduceOp::kSum);
  EXPECT_TRUE(SameBits(left, RunOp(kResample, {x}, {.dim = 1, .extent = 6, .mode = ResampleMode::kNearest})));
  EXPECT_TRUE(std::signbit(left.ToVector<float>()[0]));
}

TEST(ResampleTest, RefusesMisuse) {
  const auto infer = [](const TensorType& x, const ResampleAttributes& a) {
    return InvalidArgumentMessage([&] { kResample.Infer({x}, &a); });
  };
  const TensorType x = {DType::kF32, {2, 3}};
  EXPECT_EQ(infer({DType::kI32, {2}}, {.extent = 2}), "resample: expected a floating dtype, got i32[2]");
  EXPECT_EQ(infer(x, {.dim = 2, .extent = 2}), "resample: there is no dim 2 in f32[2, 3]");
  EXPECT_EQ(infer(x, {.dim = 1, .extent = 0}),
            "resample: expected extents of at least 1, got 3 of f32[2, 3] and 0");
  EXPECT_EQ(infer(x, {.extent = 2, .mode = ResampleMode::kArea, .align_corners = true}),
            "resample: align_corners is for linear and cubic only");
  EXPECT_EQ(infer(x, {.extent = 2, .scale = -1}), "resample: expected a finite scale, got -1");
}

}  // namespace
}  // namespace weft
