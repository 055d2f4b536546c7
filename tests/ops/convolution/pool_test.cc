#include "ops/convolution/pool.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

Tensor As(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

// Whole numbers, many of them equal, that every dtype holds.
Tensor WholeNumbers(DType dtype, const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = static_cast<double>(random() % 7) - 3;
  return As(dtype, shape, values);
}

// What a window is, place by place, by the definition: offset of the element in the plane, or -1 for padding;
// places beyond the padded image are left out.
std::vector<int64_t> PlacesOf(const PoolAttributes& a, const Shape& x, int64_t p, int64_t q) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < a.kernel[0]; ++i) {
    for (int64_t j = 0; j < a.kernel[1]; ++j) {
      const int64_t row = p * a.stride[0] + i * a.dilation[0] - a.padding[0];
      const int64_t column = q * a.stride[1] + j * a.dilation[1] - a.padding[1];
      if (row >= x[2] + a.padding[0] || column >= x[3] + a.padding[1]) continue;
      const bool inside = row >= 0 && row < x[2] && column >= 0 && column < x[3];
      places.push_back(inside ? row * x[3] + column : -1);
    }
  }
  return places;
}

void CheckAgainstDefinition(const Shape& shape, const PoolAttributes& a, DType dtype) {
  const std::string what = absl::StrCat(shape.ToString(), " kernel ", a.kernel[0], "x", a.kernel[1], " ",
                                        DTypeName(dtype), a.ceil_mode ? " ceil" : "");
  const Tensor x = WholeNumbers(dtype, shape, 1);
  const std::vector<double> xs = x.ToVector<double>();
  const std::vector<Tensor> max = RunAll(kMaxPool, {x}, a);
  const Shape out = max[0].shape();
  const Tensor dy = WholeNumbers(dtype, out, 2);
  const std::vector<double> dys = dy.ToVector<double>();
  std::vector<double> maxima, means, max_dx(xs.size(), 0.0), mean_dx(xs.size(), 0.0);
  std::vector<int64_t> indices;
  const bool dilated = a.dilation[0] > 1 || a.dilation[1] > 1;
  for (int64_t plane = 0; plane < out[0] * out[1]; ++plane) {
    const int64_t base = plane * shape[2] * shape[3];
    for (int64_t p = 0; p < out[2]; ++p) {
      for (int64_t q = 0; q < out[3]; ++q) {
        const std::vector<int64_t> places = PlacesOf(a, shape, p, q);
        int64_t best = -1;
        double sum = 0;
        int64_t inside = 0;
        for (int64_t place : places) {
          if (place < 0) continue;
          ++inside;
          sum += xs[base + place];
          if (best < 0 || xs[base + place] > xs[base + best]) best = place;
        }
        const double divisor =
            static_cast<double>(a.count_padding ? static_cast<int64_t>(places.size()) : inside);
        const double gradient = dys[maxima.size()];
        for (int64_t place : places) {
          if (place >= 0) mean_dx[base + place] += gradient / divisor;
        }
        max_dx[base + best] += gradient;
        indices.push_back(best);
        maxima.push_back(xs[base + best]);
        means.push_back(sum / divisor);
      }
    }
  }
  const double tolerance = Tolerance(dtype);
  EXPECT_TRUE(SameBits(max[0], As(dtype, out, maxima))) << what;
  EXPECT_EQ(max[1].ToVector<int64_t>(), indices) << what;
  EXPECT_TRUE(AllClose(Backward(kMaxPool, {x}, {dy, Tensor()}, a)[0], As(dtype, shape, max_dx), tolerance))
      << what;
  if (dilated) return;
  EXPECT_TRUE(AllClose(RunOp(kAvgPool, {x}, a), As(dtype, out, means), tolerance)) << what;
  EXPECT_TRUE(AllClose(Backward(kAvgPool, {x}, {dy}, a)[0], As(dtype, shape, mean_dx), tolerance)) << what;
}

TEST(PoolTest, MatchesTheDefinition) {
  const std::vector<PoolAttributes> all = {
      {},
      {.kernel = {2, 3}, .stride = {2, 3}},
      {.kernel = {3, 2}, .stride = {1, 1}},
      {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}},
      {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .count_padding = false},
      {.kernel = {2, 2}, .stride = {2, 2}, .ceil_mode = true},
      {.kernel = {3, 3}, .stride = {2, 3}, .padding = {1, 1}, .ceil_mode = true},
      {.kernel = {3, 3}, .stride = {3, 2}, .padding = {1, 0}, .ceil_mode = true, .count_padding = false},
      {.kernel = {2, 2}, .stride = {1, 1}, .padding = {1, 1}, .dilation = {2, 3}},
  };
  for (const PoolAttributes& a : all) {
    for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
      CheckAgainstDefinition({2, 3, 7, 5}, a, dtype);
    }
    CheckAgainstDefinition({1, 1, 4, 6}, a, DType::kF32);
  }
  CheckAgainstDefinition({5, 7, 40, 41}, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
                         DType::kF32);
}

// PyTorch: torch.nn.functional.max_pool2d(x, 2, 2, ceil_mode=True), x = [1, 2, 3; 4, 5, 6; 7, 8, 9].
TEST(PoolTest, CeilModeKeepsTheLastWindow) {
  const Tensor x = As(DType::kF32, {1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  PoolAttributes a = {.kernel = {2, 2}, .stride = {2, 2}, .ceil_mode = true};
  EXPECT_EQ(RunOp(kMaxPool, {x}, a).ToVector<float>(), (std::vector<float>{5, 6, 8, 9}));
  EXPECT_EQ(RunOp(kAvgPool, {x}, a).ToVector<float>(), (std::vector<float>{3, 4.5, 7.5, 9}));
  a.ceil_mode = false;
  EXPECT_EQ(RunOp(kMaxPool, {x}, a).ToVector<float>(), std::vector<float>{5});
  // A window that would start in the padding behind the image is left out: 3 + 2 = 5 rows hold two of
  // stride 3.
  a = {.kernel = {2, 2}, .stride = {3, 3}, .padding = {1, 1}, .ceil_mode = true};
  EXPECT_EQ(RunOp(kMaxPool, {x}, a).shape(), Shape({1, 1, 2, 2}));
}

// PyTorch: torch.nn.functional.max_pool2d(x, 3, 2, ceil_mode=True), x = [1, 2; 3, 4], is 4: the window is cut at the image's end.
TEST(PoolTest, CeilModeTakesAnImageThatIsSmallerThanTheKernel) {
  const Tensor x = As(DType::kF32, {1, 1, 2, 2}, {1, 2, 3, 4});
  PoolAttributes a = {.kernel = {3, 3}, .stride = {2, 2}, .ceil_mode = true};
  EXPECT_EQ(RunOp(kMaxPool, {x}, a).ToVector<float>(), std::vector<float>{4});
  EXPECT_EQ(RunOp(kAvgPool, {x}, a).ToVector<float>(), std::vector<float>{2.5});
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    CheckAgainstDefinition({2, 3, 2, 1}, {.kernel = {3, 3}, .stride = {2, 3}, .ceil_mode = true}, dtype);
    CheckAgainstDefinition({2, 3, 1, 1},
                           {.kernel = {4, 3}, .stride = {3, 2}, .padding = {1, 1}, .ceil_mode = true}, dtype);
    CheckAgainstDefinition(
        {2, 3, 2, 2}, {.kernel = {2, 2}, .stride = {3, 2}, .dilation = {3, 2}, .ceil_mode = true}, dtype);
  }
  a.kernel = {4, 3};  // by a whole stride
  EXPECT_EQ(InvalidArgumentMessage([&] {
              kMaxPool.Infer(TensorTypes{{DType::kF32, {1, 1, 2, 2}}}, &a);
            }),
            "max_pool: a kernel of 4 with dilation 1 does not fit an image of 2 with padding 0");
}

TEST(PoolTest, NaNWinsAndEqualMaximaTakeTheFirst) {
  const double nan = std::nan("");
  const double low = -std::numeric_limits<double>::infinity();
  const Tensor x = As(DType::kF64, {1, 1, 1, 8}, {1, nan, 2, 2, low, low, nan, nan});
  const PoolAttributes a = {.kernel = {1, 2}, .stride = {1, 2}};
  const std::vector<Tensor> max = RunAll(kMaxPool, {x}, a);
  EXPECT_TRUE(SameBits(max[0], As(DType::kF64, {1, 1, 1, 4}, {nan, 2, low, nan})));
  EXPECT_EQ(max[1].ToVector<int64_t>(), (std::vector<int64_t>{1, 2, 4, 7}));
}

TEST(PoolTest, EmptyAndStrided) {
  const PoolAttributes a = {.kernel = {2, 2}, .stride = {1, 1}};
  for (const Shape& shape : {Shape{0, 3, 4, 4}, Shape{2, 0, 4, 4}}) {
    const Tensor x = WholeNumbers(DType::kF32, shape, 1);
    const std::vector<Tensor> max = RunAll(kMaxPool, {x}, a);
    EXPECT_EQ(Backward(kMaxPool, {x}, {max[0], Tensor()}, a)[0].shape(), shape);
    EXPECT_EQ(Backward(kAvgPool, {x}, {RunOp(kAvgPool, {x}, a)}, a)[0].shape(), shape);
  }
  const Tensor strided = WholeNumbers(DType::kF32, {5, 4, 3, 2}, 1).Permute({3, 2, 1, 0});
  const Tensor dense = CloneTensor(strided, MakeCpuAllocator());
  EXPECT_TRUE(SameBits(RunOp(kMaxPool, {strided}, a), RunOp(kMaxPool, {dense}, a)));
  EXPECT_TRUE(SameBits(RunOp(kAvgPool, {strided}, a), RunOp(kAvgPool, {dense}, a)));
}

TEST(PoolTest, BitsDoNotDependOnThreads) {
  const PoolAttributes a = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  const Tensor x = WholeNumbers(DType::kF32, {6, 7, 50, 50}, 1);
  const Tensor mean = RunOp(kAvgPool, {x}, a);
  EXPECT_TRUE(SameBits(RunOp(kAvgPool, {x}, a, {}, 3), mean));
  EXPECT_TRUE(SameBits(RunOp(kAvgPoolGrad, {mean}, {a, {50, 50}}, {}, 3),
                       RunOp(kAvgPoolGrad, {mean}, {a, {50, 50}})));
}

std::string InferMessage(const Shape& x, const PoolAttributes& a) {
  return InvalidArgumentMessage([&] { kMaxPool.Infer(TensorTypes{{DType::kF32, x}}, &a); });
}

TEST(PoolTest, Errors) {
  EXPECT_EQ(InferMessage({2, 3, 4}, {}), "max_pool: expected a floating [n, c, h, w], got f32[2, 3, 4]");
  EXPECT_EQ(InferMessage({2, 3, 4, 4}, {.kernel = {3, 3}, .padding = {2, 1}}),
            "max_pool: padding must be at most half of the kernel, got 2 for 3");
  EXPECT_EQ(InferMessage({2, 3, 4, 4}, {.kernel = {3, 5}}),
            "max_pool: a kernel of 5 with dilation 1 does not fit an image of 4 with padding 0");
  EXPECT_EQ(InferMessage({2, 3, 2, 4}, {.kernel = {2, 1}, .padding = {1, 0}, .dilation = {3, 1}}),
            "max_pool: window 0 holds no element of an image of 2, only padding");
  EXPECT_EQ(InferMessage({2, 3, 4, 4}, {.kernel = {0, 1}}),
            "max_pool: kernel, stride and dilation must be positive, got 0, 1, 1");
  const PoolAttributes dilated = {.dilation = {2, 1}};
  EXPECT_EQ(InvalidArgumentMessage([&] {
              kAvgPool.Infer(TensorTypes{{DType::kF32, {1, 1, 4, 4}}}, &dilated);
            }),
            "avg_pool: dilation is not supported, got [2, 1]");
  const Tensor index = Tensor::FromValues<int64_t>({1, 1, 1, 1}, {4});
  const Tensor dy = As(DType::kF32, {1, 1, 1, 1}, {1});
  EXPECT_EQ(MessageOf([&] {
              RunOp(kMaxPoolGrad, {index, dy}, {{.kernel = {2, 2}}, {2, 2}});
            }),
            "max_pool_grad: index 4 is outside images of 4 elements");
}

}  // namespace
}  // namespace weft
