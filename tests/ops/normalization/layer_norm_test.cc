#include "ops/normalization/layer_norm.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/normalization/layer_norm_grad.h"
#include "ops/normalization/norm_rstd.h"
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

// Everything in double, row by row, as the formulas stand.
struct Naive {
  std::vector<double> y, mean, rstd, dx, dw, db;

  Naive(const Tensor& x_tensor, const Tensor& w_tensor, const Tensor& b_tensor, const Tensor& dy_tensor,
        double eps) {
    const std::vector<double> x = x_tensor.ToVector<double>(), w = w_tensor.ToVector<double>(),
                              b = b_tensor.ToVector<double>(), dy = dy_tensor.ToVector<double>();
    const size_t d = w.size();
    dw.assign(d, 0);
    db.assign(d, 0);
    for (size_t row = 0; d > 0 && row < x.size() / d; ++row) {
      const double* v = x.data() + row * d;
      double m = 0, variance = 0, g_mean = 0, gn_mean = 0;
      for (size_t i = 0; i < d; ++i) m += v[i] / d;
      for (size_t i = 0; i < d; ++i) variance += (v[i] - m) * (v[i] - m) / d;
      const double r = 1 / std::sqrt(variance + eps);
      mean.push_back(m);
      rstd.push_back(r);
      for (size_t i = 0; i < d; ++i) {
        const double unit = (v[i] - m) * r, gradient = dy[row * d + i];
        y.push_back(unit * w[i] + b[i]);
        dw[i] += gradient * unit;
        db[i] += gradient;
        g_mean += gradient * w[i] / d;
        gn_mean += gradient * w[i] * unit / d;
      }
      for (size_t i = 0; i < d; ++i) {
        dx.push_back(r * (dy[row * d + i] * w[i] - g_mean - (v[i] - m) * r * gn_mean));
      }
    }
  }
};

Shape RowsShape(Shape shape) {
  shape.Remove(shape.ndim() - 1);
  return shape;
}

class LayerNormTest : public ::testing::TestWithParam<DType> {};

TEST_P(LayerNormTest, MatchesANaiveLoop) {
  const DType dtype = GetParam();
  const DType statistic = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const double tolerance = dtype == DType::kF64   ? 1e-12
                           : dtype == DType::kF32 ? 2e-5
                           : dtype == DType::kF16 ? 1e-2
                                                  : 5e-2;
  const double statistic_tolerance = dtype == DType::kF64 ? 1e-12 : 1e-6;
  for (const Shape& shape :
       {Shape{5}, Shape{0, 4}, Shape{4, 1}, Shape{2, 3, 16}, Shape{33, 17}, Shape{70, 131}}) {
    const int64_t d = shape[shape.ndim() - 1];
    const Tensor x = Random(dtype, shape, 1), w = Random(dtype, {d}, 2), b = Random(dtype, {d}, 3);
    const Tensor dy = Random(dtype, shape, 4, -1, 1);
    const Naive naive(x, w, b, dy, 1e-3);
    const std::vector<Tensor> outputs = RunAll(kLayerNorm, {x, w, b}, {.eps = 1e-3});
    EXPECT_TRUE(AllClose(outputs[0], Make(dtype, shape, naive.y), tolerance)) << shape.ToString();
    EXPECT_TRUE(AllClose(outputs[1], Make(statistic, RowsShape(shape), naive.mean), statistic_tolerance));
    EXPECT_TRUE(AllClose(outputs[2], Make(statistic, RowsShape(shape), naive.rstd), statistic_tolerance));
    const std::vector<Tensor> gradients = Backward(kLayerNorm, {x, w, b}, {dy, {}, {}}, {.eps = 1e-3});
    EXPECT_TRUE(AllClose(gradients[0], Make(dtype, shape, naive.dx), tolerance)) << shape.ToString();
    EXPECT_TRUE(AllClose(gradients[1], Make(dtype, {d}, naive.dw), tolerance)) << shape.ToString();
    EXPECT_TRUE(AllClose(gradients[2], Make(dtype, {d}, naive.db), tolerance)) << shape.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, LayerNormTest,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST(LayerNormTest, ALargeMeanDoesNotCancel) {
  // Values 4096 +- 1: in f32, E[x^2] - mean^2 would lose the variance altogether.
  std::vector<double> values(100);
  for (int i = 0; i < 100; ++i) values[i] = 4096 + (i % 2 == 0 ? 1 : -1);
  const Tensor ones = Make(DType::kF32, {100}, std::vector<double>(100, 1));
  const Tensor zeros = Make(DType::kF32, {100}, std::vector<double>(100, 0));
  const std::vector<Tensor> outputs =
      RunAll(kLayerNorm, {Make(DType::kF32, {100}, values), ones, zeros}, {.eps = 0});
  EXPECT_EQ(outputs[1].ToVector<double>()[0], 4096);
  EXPECT_EQ(outputs[2].ToVector<double>()[0], 1);
}

TEST(LayerNormTest, GradientsMatchDifferences) {
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 2, 9}, Shape{6}, Shape{3, 1}}) {
    const Shape d = {shape[shape.ndim() - 1]};
    const Sample<LayerNormAttributes> sample = {
        .operands = {{{DType::kF64, shape}}, {{DType::kF64, d}}, {{DType::kF64, d}}},
        .attributes = {.eps = 0.1}};
    EXPECT_TRUE(CheckGradients(kLayerNorm, sample, {.statistics = {1, 2}})) << shape.ToString();
  }
}

TEST(LayerNormTest, ThreadsDoNotChangeBits) {
  // More rows than blocks of the weight gradients.
  const Tensor x = Random(DType::kF32, {1500, 65}, 1), w = Random(DType::kF32, {65}, 2),
               b = Random(DType::kF32, {65}, 3);
  const Tensor dy = Random(DType::kF32, {1500, 65}, 4);
  const std::vector<Tensor> forward = RunAll(kLayerNorm, {x, w, b});
  const std::vector<Tensor> operands = {x, w, forward[1], forward[2], dy};
  const std::vector<Tensor> backward = RunAll(kLayerNormGrad, operands);
  for (int threads : {2, 5}) {
    const std::vector<Tensor> again = RunAll(kLayerNorm, {x, w, b}, {}, {}, threads);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(again[i], forward[i]));
    const std::vector<Tensor> backward_again = RunAll(kLayerNormGrad, operands, {}, {}, threads);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(backward_again[i], backward[i]));
  }
  const std::vector<Tensor> weights_alone = RunAll(kLayerNormWeightGrad, {x, forward[1], forward[2], dy});
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(SameBits(weights_alone[i], backward[i + 1]));
}

TEST(LayerNormTest, AnyStrides) {
  const Tensor x = Random(DType::kF32, {6, 5, 4}, 1);
  const Tensor w = Random(DType::kF32, {12}, 2).Slice(0, 3, 4),
               b = Random(DType::kF32, {2, 4}, 3).Select(0, 1);
  const Tensor view = x.Transpose(0, 1);
  EXPECT_TRUE(SameBits(RunOp(kLayerNorm, {view, w, b}),
                       RunOp(kLayerNorm, {CloneTensor(view, MakeCpuAllocator()), w, b})));
  // The gradient of a sum arrives expanded: every stride 0.
  const Tensor ones = Make(DType::kF32, {}, {1}).Expand({6, 5, 4});
  const std::vector<Tensor> expanded = Backward(kLayerNorm, {x, w, b}, {ones, {}, {}});
  const std::vector<Tensor> dense =
      Backward(kLayerNorm, {x, w, b}, {CloneTensor(ones, MakeCpuAllocator()), {}, {}});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(expanded[i], dense[i]));
}

// What the decompositions do on two ranks that hold uneven pieces of d.
TEST(LayerNormTest, SplitLastDimByHand) {
  const Shape shape = {3, 7};
  const Tensor x = Random(DType::kF64, shape, 1), w = Random(DType::kF64, {7}, 2),
               b = Random(DType::kF64, {7}, 3);
  const Tensor dy = Random(DType::kF64, shape, 4);
  const ShardBox rows = WholeBox({3});
  const std::vector<Range> ranges = {{0, 4}, {4, 3}};
  const auto add_up = [&](auto run) {
    std::vector<Tensor> sums = run(ranges[0]);
    const std::vector<Tensor> others = run(ranges[1]);
    for (size_t i = 0; i < sums.size(); ++i) AccumulateTensor(others[i], sums[i], ReduceOp::kSum);
    return sums;
  };
  const Tensor mean = add_up([&](Range r) { return RunSharded(kRowMean, {SplitPiece(x, 1, r)}, {rows}); })[0];
  const Tensor variance = add_up([&](Range r) {
    return RunSharded(kRowVariance, {SplitPiece(x, 1, r), WholePiece(mean)}, {rows});
  })[0];
  const Tensor rstd = RunOp(kNormRstd, {variance}, {.eps = 0.01});
  const std::vector<Tensor> whole = RunAll(kLayerNorm, {x, w, b}, {.eps = 0.01});
  EXPECT_TRUE(AllClose(mean, whole[1], 1e-14));
  EXPECT_TRUE(AllClose(rstd, whole[2], 1e-14));

  const auto pieces = [&](Range r) -> std::vector<Piece> {
    return {SplitPiece(x, 1, r), SplitPiece(w, 0, r), WholePiece(mean), WholePiece(rstd),
            SplitPiece(dy, 1, r)};
  };
  const std::vector<Tensor> means = add_up([&](Range r) {
    return RunSharded(kLayerNormGradMeans, pieces(r), {rows, rows});
  });
  const std::vector<Tensor> gradients = RunAll(kLayerNormGrad, {x, w, mean, rstd, dy});
  for (Range r : ranges) {
    const ShardBox box = SplitBox(shape, 1, r);
    EXPECT_TRUE(AllClose(RunSharded(kLayerNormApply,
                                    {SplitPiece(x, 1, r), SplitPiece(w, 0, r), SplitPiece(b, 0, r),
                                     WholePiece(mean), WholePiece(rstd)},
                                    {box})[0],
                         SplitPiece(whole[0], 1, r).tensor, 1e-13));
    std::vector<Piece> operands = pieces(r);
    operands.push_back(WholePiece(means[0]));
    operands.push_back(WholePiece(means[1]));
    EXPECT_TRUE(AllClose(RunSharded(kLayerNormGradApply, operands, {box})[0],
                         SplitPiece(gradients[0], 1, r).tensor, 1e-13));
  }
}

TEST(LayerNormTest, MisuseIsNamed) {
  const auto message = [](auto function) -> std::string {
    try {
      function();
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  const Tensor x = Random(DType::kF32, {2, 4}, 1), w = Random(DType::kF32, {4}, 2);
  EXPECT_EQ(message([&] {
              RunOp(kLayerNorm, {x, w, Random(DType::kF32, {3}, 3)});
            }),
            "layer_norm: b must be f32[4], got f32[3]");
  EXPECT_EQ(message([&] {
              RunOp(kLayerNorm, {x, Random(DType::kF64, {4}, 3), w});
            }),
            "layer_norm: w must be f32[4], got f64[4]");
  EXPECT_EQ(message([&] {
              RunOp(kLayerNorm, {x, w, w}, {.eps = -1});
            }),
            "layer_norm: eps must not be negative, got -1");
}

}  // namespace
}  // namespace weft
