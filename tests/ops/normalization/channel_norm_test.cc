#include "ops/normalization/channel_norm.h"

#include <cmath>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "ops/normalization/channel_norm_grad.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

Tensor Random(DType dtype, const Shape& shape, unsigned seed, double low = -1, double high = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = uniform(random);
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor As(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

// The definitions in double, element by element.
struct Oracle {
  Shape shape;
  ChannelNormAttributes a;
  std::vector<double> x, w, b, dy;

  int64_t Channel(int64_t i) const { return i / Spatial() % shape[1]; }
  int64_t Spatial() const {
    return shape.num_elements() == 0 ? 1 : shape.num_elements() / shape[0] / shape[1];
  }
  int64_t Statistic(int64_t i) const {
    if (a.groups == 0) return Channel(i);
    const int64_t image = i / Spatial() / shape[1];
    return image * a.groups + Channel(i) / (shape[1] / a.groups);
  }

  std::vector<double> y = {}, mean = {}, variance = {}, dx = {}, dw = {}, db = {};

  void Run() {
    const int64_t count = a.groups == 0 ? shape[1] : shape[0] * a.groups;
    const double share = static_cast<double>(shape.num_elements()) / static_cast<double>(count);
    mean.assign(count, 0.0);
    variance.assign(count, 0.0);
    for (size_t i = 0; i < x.size(); ++i) mean[Statistic(i)] += x[i] / share;
    for (size_t i = 0; i < x.size(); ++i)
      variance[Statistic(i)] += std::pow(x[i] - mean[Statistic(i)], 2) / share;
    std::vector<double> h(x.size()), g_mean(count, 0.0), gh_mean(count, 0.0);
    dw.assign(shape[1], 0.0);
    db.assign(shape[1], 0.0);
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t s = Statistic(i);
      const int64_t c = Channel(i);
      h[i] = (x[i] - mean[s]) / std::sqrt(variance[s] + a.eps);
      y.push_back(h[i] * w[c] + b[c]);
      dw[c] += dy[i] * h[i];
      db[c] += dy[i];
      g_mean[s] += dy[i] * w[c] / share;
      gh_mean[s] += dy[i] * w[c] * h[i] / share;
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const int64_t s = Statistic(i);
      dx.push_back((dy[i] * w[Channel(i)] - g_mean[s] - h[i] * gh_mean[s]) / std::sqrt(variance[s] + a.eps));
    }
  }
};

void CheckAgainstOracle(const Shape& shape, const ChannelNormAttributes& a, DType dtype, double tolerance) {
  const std::string what = absl::StrCat(shape.ToString(), " groups ", a.groups, " ", DTypeName(dtype));
  const Tensor x = Random(dtype, shape, 1, -1, 2);
  const Tensor w = Random(dtype, {shape[1]}, 2);
  const Tensor b = Random(dtype, {shape[1]}, 3);
  const Tensor dy = Random(dtype, shape, 4);
  Oracle oracle = {
      shape, a, x.ToVector<double>(), w.ToVector<double>(), b.ToVector<double>(), dy.ToVector<double>()};
  oracle.Run();
  const std::vector<Tensor> outputs = RunAll(kChannelNorm, {x, w, b}, a);
  const DType statistic = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  ASSERT_EQ(outputs[1].dtype(), statistic);
  EXPECT_TRUE(AllClose(outputs[0], As(dtype, shape, oracle.y), tolerance)) << what;
  EXPECT_TRUE(AllClose(outputs[1], As(statistic, outputs[1].shape(), oracle.mean), 1e-6)) << what;
  EXPECT_TRUE(AllClose(outputs[2], As(statistic, outputs[2].shape(), oracle.variance), 1e-6)) << what;
  const std::vector<Tensor> grads = Backward(kChannelNorm, {x, w, b}, {dy, Tensor(), Tensor()}, a);
  EXPECT_TRUE(AllClose(grads[0], As(dtype, shape, oracle.dx), 4 * tolerance)) << what << ": dx";
  EXPECT_TRUE(AllClose(grads[1], As(dtype, {shape[1]}, oracle.dw), 4 * tolerance)) << what << ": dw";
  EXPECT_TRUE(AllClose(grads[2], As(dtype, {shape[1]}, oracle.db), 4 * tolerance)) << what << ": db";
  // From given statistics, the same y.
  const Tensor by = RunOp(kChannelNormApply, {x, w, b, outputs[1], outputs[2]}, a);
  EXPECT_TRUE(SameBits(by, outputs[0])) << what;
}

// Rows of one element, shorter and longer than a vector; one channel a group and one group of all.
TEST(ChannelNormTest, MatchesTheDefinition) {
  for (const Shape& shape : {Shape{4, 6}, Shape{3, 6, 1}, Shape{2, 6, 15}, Shape{2, 6, 17}, Shape{3, 6, 5, 7},
                             Shape{2, 6, 2, 3, 4}, Shape{5, 6, 60, 61}}) {
    for (int64_t groups : {0, 1, 2, 6}) {
      CheckAgainstOracle(shape, {.groups = groups, .eps = 1e-3}, DType::kF64, 1e-10);
      CheckAgainstOracle(shape, {.groups = groups, .eps = 1e-3}, DType::kF32, 1e-4);
    }
  }
}

TEST(ChannelNormTest, HalvesComputeInFloat) {
  for (int64_t groups : {0, 2}) {
    CheckAgainstOracle({3, 4, 5, 7}, {.groups = groups, .eps = 1e-3}, DType::kBF16, 1e-2);
    CheckAgainstOracle({3, 4, 5, 7}, {.groups = groups, .eps = 1e-3}, DType::kF16, 2e-3);
  }
}

// E[x^2] - mean^2 would have no digit left.
TEST(ChannelNormTest, LargeMeansDoNotCancel) {
  for (int64_t groups : {0, 1}) {
    const Tensor x = Random(DType::kF32, {2, 2, 50}, 1, 4095, 4097);
    const Tensor one = As(DType::kF32, {2}, {1, 1});
    const Tensor zero = As(DType::kF32, {2}, {0, 0});
    const std::vector<Tensor> got = RunAll(kChannelNorm, {x, one, zero}, {.groups = groups});
    const std::vector<Tensor> exact = RunAll(
        kChannelNorm,
        {CastTensor(x, DType::kF64, MakeCpuAllocator()), CastTensor(one, DType::kF64, MakeCpuAllocator()),
         CastTensor(zero, DType::kF64, MakeCpuAllocator())},
        {.groups = groups});
    EXPECT_TRUE(AllClose(CastTensor(got[0], DType::kF64, MakeCpuAllocator()), exact[0], 1e-3));
    EXPECT_TRUE(AllClose(CastTensor(got[2], DType::kF64, MakeCpuAllocator()), exact[2], 1e-3));
  }
}

TEST(ChannelNormTest, ConstantsAndNothing) {
  // A channel without variance gives its bias; one element has none.
  const Tensor w = As(DType::kF32, {2}, {3, 4});
  const Tensor b = As(DType::kF32, {2}, {0.5, -1});
  EXPECT_EQ(RunOp(kChannelNorm, {As(DType::kF32, {1, 2}, {7, 9}), w, b}).ToVector<float>(),
            (std::vector<float>{0.5, -1}));
  for (const Shape& shape : {Shape{0, 2, 3}, Shape{2, 2, 0}}) {
    for (int64_t groups : {0, 1}) {
      const Tensor x = Random(DType::kF32, shape, 1);
      const std::vector<Tensor> outputs = RunAll(kChannelNorm, {x, w, b}, {.groups = groups});
      EXPECT_EQ(outputs[0].shape(), shape);
      EXPECT_TRUE(AllClose(outputs[1], CastTensor(outputs[2], DType::kF32, MakeCpuAllocator()), 0));
      for (float value : outputs[1].ToVector<float>()) EXPECT_EQ(value, 0);
      const std::vector<Tensor> grads =
          Backward(kChannelNorm, {x, w, b}, {x, Tensor(), Tensor()}, {.groups = groups});
      EXPECT_EQ(grads[1].ToVector<float>(), (std::vector<float>{0, 0}));
    }
  }
  const Tensor none = As(DType::kF32, {0}, {});
  EXPECT_EQ(RunOp(kChannelNorm, {Random(DType::kF32, {3, 0, 2}, 1), none, none}, {.groups = 1}).shape(),
            Shape({3, 0, 2}));
}

TEST(ChannelNormTest, StridedOperandsAndThreads) {
  const Tensor strided = Random(DType::kF32, {40, 30, 6, 7}, 1).Permute({3, 2, 1, 0});
  const Tensor dense = CloneTensor(strided, MakeCpuAllocator());
  const Tensor w = Random(DType::kF32, {6, 2}, 2).Select(1, 0);
  for (int64_t groups : {0, 3}) {
    const ChannelNormAttributes a = {.groups = groups};
    const std::vector<Tensor> one = RunAll(kChannelNorm, {dense, w, w}, a);
    const std::vector<Tensor> many = RunAll(kChannelNorm, {strided, w, w}, a, {}, /*num_threads=*/3);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(many[i], one[i])) << i;
    const std::vector<Tensor> grad = {dense, w, one[1], one[2], one[0]};
    const std::vector<Tensor> one_grads = RunAll(kChannelNormGrad, grad, a);
    const std::vector<Tensor> many_grads = RunAll(kChannelNormGrad, grad, a, {}, 3);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(many_grads[i], one_grads[i])) << i;
  }
}

std::string InferMessage(const Shape& x, const Shape& w, const ChannelNormAttributes& a) {
  return InvalidArgumentMessage([&] {
    kChannelNorm.Infer(TensorTypes{{DType::kF32, x}, {DType::kF32, w}, {DType::kF32, w}}, &a);
  });
}

TEST(ChannelNormTest, Errors) {
  EXPECT_EQ(InferMessage({3}, {3}, {}), "channel_norm: expected a floating x [n, c, ...], got f32[3]");
  EXPECT_EQ(InferMessage({2, 5, 3}, {5}, {.groups = 2}),
            "channel_norm: 2 groups do not divide the 5 channels of x f32[2, 5, 3]");
  EXPECT_EQ(InferMessage({2, 5, 3}, {3}, {}), "channel_norm: w must be f32[5], got f32[3]");
  EXPECT_EQ(InferMessage({2, 5, 3}, {5}, {.eps = -1}), "channel_norm: eps must not be negative, got -1");
  const Tensor x = Random(DType::kF32, {2, 3}, 1);
  const Tensor w = Random(DType::kF32, {3}, 1);
  EXPECT_EQ(MessageOf([&] {
              Backward(kChannelNorm, {x, w, w}, {x, w, Tensor()});
            }),
            "channel_norm: a gradient reached output 'mean', which only serves the op's own backward");
}

}  // namespace
}  // namespace weft
