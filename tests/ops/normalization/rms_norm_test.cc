#include "ops/normalization/rms_norm.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/normalization/norm_rstd.h"
#include "ops/normalization/rms_norm_grad.h"
#include "ops/reduce/row_reductions.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/check_gradients.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

Tensor Make(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor Random(DType dtype, const Shape& shape, int seed, double low = -2, double high = 3) {
  std::mt19937_64 random(seed);
  return RandomTensor({{dtype, shape}, low, high}, random);
}

struct Naive {
  std::vector<double> y, rstd, dx, dw;

  Naive(const Tensor& x_tensor, const Tensor& w_tensor, const Tensor& dy_tensor, double eps) {
    const std::vector<double> x = x_tensor.ToVector<double>(), w = w_tensor.ToVector<double>(),
                              dy = dy_tensor.ToVector<double>();
    const size_t d = w.size();
    dw.assign(d, 0);
    for (size_t row = 0; d > 0 && row < x.size() / d; ++row) {
      const double* v = x.data() + row * d;
      double square = 0, gn_mean = 0;
      for (size_t i = 0; i < d; ++i) square += v[i] * v[i] / d;
      const double r = 1 / std::sqrt(square + eps);
      rstd.push_back(r);
      for (size_t i = 0; i < d; ++i) {
        y.push_back(v[i] * r * w[i]);
        dw[i] += dy[row * d + i] * v[i] * r;
        gn_mean += dy[row * d + i] * w[i] * v[i] * r / d;
      }
      for (size_t i = 0; i < d; ++i) dx.push_back(r * (dy[row * d + i] * w[i] - v[i] * r * gn_mean));
    }
  }
};

class RmsNormTest : public ::testing::TestWithParam<DType> {};

TEST_P(RmsNormTest, MatchesANaiveLoop) {
  const DType dtype = GetParam();
  const DType statistic = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const double tolerance = dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 2e-5 : 5e-2;
  for (const Shape& shape :
       {Shape{5}, Shape{0, 4}, Shape{4, 1}, Shape{2, 3, 16}, Shape{33, 17}, Shape{70, 131}}) {
    const int64_t d = shape[shape.ndim() - 1];
    Shape rows = shape;
    rows.Remove(shape.ndim() - 1);
    const Tensor x = Random(dtype, shape, 1), w = Random(dtype, {d}, 2), dy = Random(dtype, shape, 4, -1, 1);
    const Naive naive(x, w, dy, 1e-3);
    const std::vector<Tensor> outputs = RunAll(kRmsNorm, {x, w}, {.eps = 1e-3});
    EXPECT_TRUE(AllClose(outputs[0], Make(dtype, shape, naive.y), tolerance)) << shape.ToString();
    EXPECT_TRUE(AllClose(outputs[1], Make(statistic, rows, naive.rstd), dtype == DType::kF64 ? 1e-12 : 1e-6));
    const std::vector<Tensor> gradients = Backward(kRmsNorm, {x, w}, {dy, {}}, {.eps = 1e-3});
    EXPECT_TRUE(AllClose(gradients[0], Make(dtype, shape, naive.dx), tolerance)) << shape.ToString();
    EXPECT_TRUE(AllClose(gradients[1], Make(dtype, {d}, naive.dw), tolerance)) << shape.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RmsNormTest, ::testing::Values(DType::kF32, DType::kF64, DType::kBF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(RmsNormTest, GradientsMatchDifferences) {
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 2, 9}, Shape{6}, Shape{3, 1}}) {
    const Shape d = {shape[shape.ndim() - 1]};
    const Sample<RmsNormAttributes> sample = {.operands = {{{DType::kF64, shape}}, {{DType::kF64, d}}},
                                              .attributes = {.eps = 0.1}};
    EXPECT_TRUE(CheckGradients(kRmsNorm, sample, {.statistics = {1}})) << shape.ToString();
  }
}

TEST(RmsNormTest, ThreadsDoNotChangeBits) {
  const Tensor x = Random(DType::kF32, {1500, 65}, 1), w = Random(DType::kF32, {65}, 2);
  const Tensor dy = Random(DType::kF32, {1500, 65}, 4);
  const std::vector<Tensor> forward = RunAll(kRmsNorm, {x, w});
  const std::vector<Tensor> backward = RunAll(kRmsNormGrad, {x, w, forward[1], dy});
  for (int threads : {2, 5}) {
    const std::vector<Tensor> again = RunAll(kRmsNorm, {x, w}, {}, {}, threads);
    const std::vector<Tensor> backward_again = RunAll(kRmsNormGrad, {x, w, forward[1], dy}, {}, {}, threads);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(SameBits(again[i], forward[i]));
      EXPECT_TRUE(SameBits(backward_again[i], backward[i]));
    }
  }
  EXPECT_TRUE(SameBits(RunOp(kRmsNormWeightGrad, {x, forward[1], dy}), backward[1]));
}

// What the decompositions do on two ranks that hold uneven pieces of d.
TEST(RmsNormTest, SplitLastDimByHand) {
  const Shape shape = {3, 7};
  const Tensor x = Random(DType::kF64, shape, 1), w = Random(DType::kF64, {7}, 2),
               dy = Random(DType::kF64, shape, 4);
  const ShardBox rows = WholeBox({3});
  const std::vector<Range> ranges = {{0, 4}, {4, 3}};
  const auto add_up = [&](auto run) {
    const Tensor sum = run(ranges[0]);
    AccumulateTensor(run(ranges[1]), sum, ReduceOp::kSum);
    return sum;
  };
  const Tensor square =
      add_up([&](Range r) { return RunSharded(kRowMeanSquare, {SplitPiece(x, 1, r)}, {rows})[0]; });
  const Tensor rstd = RunOp(kNormRstd, {square}, {.eps = 0.01});
  const std::vector<Tensor> whole = RunAll(kRmsNorm, {x, w}, {.eps = 0.01});
  EXPECT_TRUE(AllClose(rstd, whole[1], 1e-14));
  const auto pieces = [&](Range r) -> std::vector<Piece> {
    return {SplitPiece(x, 1, r), SplitPiece(w, 0, r), WholePiece(rstd), SplitPiece(dy, 1, r)};
  };
  const Tensor gn_mean = add_up([&](Range r) { return RunSharded(kRmsNormGradMean, pieces(r), {rows})[0]; });
  const std::vector<Tensor> gradients = RunAll(kRmsNormGrad, {x, w, rstd, dy});
  for (Range r : ranges) {
    const ShardBox box = SplitBox(shape, 1, r);
    EXPECT_TRUE(AllClose(
        RunSharded(kRmsNormApply, {SplitPiece(x, 1, r), SplitPiece(w, 0, r), WholePiece(rstd)}, {box})[0],
        SplitPiece(whole[0], 1, r).tensor, 1e-13));
    std::vector<Piece> operands = pieces(r);
    operands.push_back(WholePiece(gn_mean));
    EXPECT_TRUE(AllClose(RunSharded(kRmsNormGradApply, operands, {box})[0],
                         SplitPiece(gradients[0], 1, r).tensor, 1e-13));
  }
}

TEST(RmsNormTest, MisuseIsNamed) {
  const auto message = [](auto function) -> std::string {
    try {
      function();
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  const Tensor x = Random(DType::kF32, {2, 4}, 1);
  EXPECT_EQ(message([&] {
              RunOp(kRmsNorm, {x, Random(DType::kF32, {1}, 3)});
            }),
            "rms_norm: w must be f32[4], got f32[1]");
}

}  // namespace
}  // namespace weft
