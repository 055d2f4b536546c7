#include "ops/convolution/conv.h"

#include <random>
#include <string>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

Tensor Random(DType dtype, const Shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = uniform(random);
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor As(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

struct Case {
  Shape x;
  Shape w;
  ConvAttributes a;
};

// The definition, by seven loops: calls body(x index, w index, y index) for every product.
template <class Body>
void ForEachProduct(const Case& c, const Shape& y, const Body& body) {
  const int64_t outputs_a_group = c.w[0] / c.a.groups;
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t o = 0; o < y[1]; ++o) {
      for (int64_t p = 0; p < y[2]; ++p) {
        for (int64_t q = 0; q < y[3]; ++q) {
          for (int64_t k = 0; k < c.w[1]; ++k) {
            for (int64_t i = 0; i < c.w[2]; ++i) {
              for (int64_t j = 0; j < c.w[3]; ++j) {
                const int64_t channel = o / outputs_a_group * c.w[1] + k;
                const int64_t row = p * c.a.stride[0] + i * c.a.dilation[0] - c.a.padding[0];
                const int64_t column = q * c.a.stride[1] + j * c.a.dilation[1] - c.a.padding[1];
                if (row < 0 || row >= c.x[2] || column < 0 || column >= c.x[3]) continue;
                body(((n * c.x[1] + channel) * c.x[2] + row) * c.x[3] + column,
                     ((o * c.w[1] + k) * c.w[2] + i) * c.w[3] + j, ((n * y[1] + o) * y[2] + p) * y[3] + q);
              }
            }
          }
        }
      }
    }
  }
}

void CheckAgainstLoops(const Case& c, DType dtype, double tolerance) {
  const std::string what = absl::StrCat("x ", c.x.ToString(), " w ", c.w.ToString(), " ", DTypeName(dtype));
  const Tensor x = Random(dtype, c.x, 1);
  const Tensor w = Random(dtype, c.w, 2);
  const Tensor b = Random(dtype, {c.w[0]}, 3);
  const Tensor y = RunOp(kConv, {x, w, b}, c.a);
  const Tensor dy = Random(dtype, y.shape(), 4);
  const std::vector<double> xs = x.ToVector<double>(), ws = w.ToVector<double>(), bs = b.ToVector<double>();
  const std::vector<double> dys = dy.ToVector<double>();
  std::vector<double> ys(dys.size()), dxs(xs.size(), 0.0), dws(ws.size(), 0.0), dbs(bs.size(), 0.0);
  const int64_t pixels = y.shape()[2] * y.shape()[3];
  for (size_t i = 0; i < ys.size(); ++i) {
    const int64_t output = static_cast<int64_t>(i) / pixels % c.w[0];
    ys[i] = bs[output];
    dbs[output] += dys[i];
  }
  ForEachProduct(c, y.shape(), [&](int64_t xi, int64_t wi, int64_t yi) {
    ys[yi] += xs[xi] * ws[wi];
    dxs[xi] += dys[yi] * ws[wi];
    dws[wi] += dys[yi] * xs[xi];
  });
  EXPECT_TRUE(AllClose(y, As(dtype, y.shape(), ys), tolerance)) << what;
  const std::vector<Tensor> grads = Backward(kConv, {x, w, b}, {dy}, c.a);
  EXPECT_TRUE(AllClose(grads[0], As(dtype, c.x, dxs), tolerance)) << what << ": dx";
  EXPECT_TRUE(AllClose(grads[1], As(dtype, c.w, dws), tolerance)) << what << ": dw";
  EXPECT_TRUE(AllClose(grads[2], As(dtype, {c.w[0]}, dbs), tolerance)) << what << ": db";
}

TEST(ConvTest, MatchesTheDefinition) {
  const std::vector<Case> cases = {
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {}},
      {{2, 3, 5, 7}, {4, 3, 3, 2}, {}},
      {{2, 3, 6, 5}, {5, 3, 1, 1}, {}},  // no windows to copy
      {{2, 3, 6, 5}, {5, 3, 1, 1}, {.stride = {2, 3}}},
      {{2, 3, 6, 5}, {5, 3, 1, 1}, {.padding = {1, 0}}},
      {{3, 2, 7, 8}, {3, 2, 3, 3}, {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}}},
      {{2, 6, 5, 5}, {4, 3, 2, 2}, {.stride = {1, 2}, .padding = {1, 1}, .groups = 2}},
      {{2, 5, 6, 6}, {5, 1, 3, 3}, {.padding = {1, 1}, .groups = 5}},
      {{1, 3, 4, 4}, {6, 1, 3, 3}, {.padding = {1, 1}, .dilation = {2, 2}, .groups = 3}},
      {{1, 2, 1, 9}, {3, 2, 1, 4}, {.stride = {1, 2}, .padding = {0, 3}}},
      {{1, 1, 2, 2}, {1, 1, 4, 4}, {.padding = {5, 5}}},  // windows that hold padding alone
      // Several blocks of pixels, of outputs and of channels.
      {{1, 2100, 18, 17}, {3, 2100, 1, 1}, {}},
      {{1, 230, 20, 21}, {3, 230, 3, 3}, {.padding = {1, 1}}},
      {{1, 70, 3, 3}, {130, 70, 2, 2}, {}},
  };
  for (const Case& c : cases) {
    CheckAgainstLoops(c, DType::kF64, 1e-11);
    CheckAgainstLoops(c, DType::kF32, 3e-4);
  }
}

TEST(ConvTest, HalvesComputeInFloat) {
  const Case c = {{2, 3, 5, 7}, {4, 3, 3, 2}, {.padding = {1, 1}}};
  CheckAgainstLoops(c, DType::kBF16, 8e-3);
  CheckAgainstLoops(c, DType::kF16, 1e-3);
}

TEST(ConvTest, StridedOperands) {
  const Tensor x = Random(DType::kF32, {5, 4, 3, 2}, 1).Permute({3, 2, 1, 0});  // [2, 3, 4, 5]
  const Tensor w = Random(DType::kF32, {3, 4, 2, 2}, 2).Transpose(0, 1);        // [4, 3, 2, 2]
  const Tensor b = Random(DType::kF32, {4, 2}, 3).Select(1, 1);
  const auto copy = [](const Tensor& tensor) { return CloneTensor(tensor, MakeCpuAllocator()); };
  EXPECT_TRUE(SameBits(RunOp(kConv, {x, w, b}), RunOp(kConv, {copy(x), copy(w), copy(b)})));
}

TEST(ConvTest, BitsDoNotDependOnThreads) {
  const ConvAttributes a = {.padding = {1, 1}};
  const Tensor x = Random(DType::kF32, {5, 16, 20, 20}, 1);
  const Tensor w = Random(DType::kF32, {70, 16, 3, 3}, 2);
  const Tensor b = Random(DType::kF32, {70}, 3);
  const Tensor one = RunOp(kConv, {x, w, b}, a);
  const Tensor one_dx = RunOp(kConvDataGrad, {one, w}, {a, {20, 20}});
  const Tensor one_dw = RunOp(kConvWeightGrad, {x, one}, {a, {3, 3}});
  for (int threads : {2, 3}) {
    EXPECT_TRUE(SameBits(RunOp(kConv, {x, w, b}, a, {}, threads), one));
    EXPECT_TRUE(SameBits(RunOp(kConvDataGrad, {one, w}, {a, {20, 20}}, {}, threads), one_dx));
    EXPECT_TRUE(SameBits(RunOp(kConvWeightGrad, {x, one}, {a, {3, 3}}, {}, threads), one_dw));
  }
}

TEST(ConvTest, EmptyExtents) {
  const Tensor w = Random(DType::kF32, {4, 3, 2, 2}, 2);
  const Tensor b = Random(DType::kF32, {4}, 3);
  // No images.
  const Tensor none = Random(DType::kF32, {0, 3, 4, 4}, 1);
  const Tensor y = RunOp(kConv, {none, w, b});
  EXPECT_EQ(y.shape(), Shape({0, 4, 3, 3}));
  const std::vector<Tensor> grads = Backward(kConv, {none, w, b}, {y});
  EXPECT_EQ(grads[0].shape(), none.shape());
  EXPECT_EQ(grads[1].ToVector<float>(), std::vector<float>(48, 0.0f));
  // No channels: the bias alone.
  const Tensor hollow = Random(DType::kF32, {1, 0, 2, 2}, 1);
  const Tensor hollow_w = Random(DType::kF32, {4, 0, 2, 2}, 1);
  EXPECT_TRUE(SameBits(RunOp(kConv, {hollow, hollow_w, b}), b.Reshape({1, 4, 1, 1})));
  // No outputs: nothing comes back.
  const Tensor no_w = Random(DType::kF32, {0, 3, 2, 2}, 1);
  const Tensor no_dy = Random(DType::kF32, {2, 0, 3, 3}, 1);
  EXPECT_EQ(RunOp(kConvDataGrad, {no_dy, no_w}, {{}, {4, 4}}).ToVector<float>(),
            std::vector<float>(96, 0.0f));
}

TEST(ConvTest, NaNReachesTheWindowsThatSeeIt) {
  std::vector<double> values(9, 1.0);
  values[8] = std::nan("");
  const Tensor ones = As(DType::kF32, {1, 1, 2, 2}, {1, 1, 1, 1});
  const std::vector<float> y =
      RunOp(kConv, {As(DType::kF32, {1, 1, 3, 3}, values), ones, As(DType::kF32, {1}, {0})})
          .ToVector<float>();
  EXPECT_EQ(std::vector<float>(y.begin(), y.end() - 1), std::vector<float>(3, 4.0f));
  EXPECT_TRUE(std::isnan(y[3]));
}

std::string InferMessage(const Shape& x, const Shape& w, const Shape& b, const ConvAttributes& a = {}) {
  return InvalidArgumentMessage([&] {
    kConv.Infer(TensorTypes{{DType::kF32, x}, {DType::kF32, w}, {DType::kF32, b}}, &a);
  });
}

TEST(ConvTest, Errors) {
  EXPECT_EQ(
      InferMessage({1, 3, 4}, {1, 3, 2, 2}, {1}),
      "conv: expected operands [n, c, h, w] and [o, c / groups, kh, kw], floating and of one dtype; got "
      "f32[1, 3, 4] and f32[1, 3, 2, 2]");
  EXPECT_EQ(InferMessage({1, 3, 4, 4}, {2, 4, 2, 2}, {2}),
            "conv: 3 channels and 2 outputs in 1 groups do not fit kernels of 4 channels");
  EXPECT_EQ(InferMessage({1, 4, 4, 4}, {3, 2, 2, 2}, {3}, {.groups = 2}),
            "conv: 4 channels and 3 outputs in 2 groups do not fit kernels of 2 channels");
  EXPECT_EQ(InferMessage({1, 3, 4, 4}, {2, 3, 2, 2}, {3}), "conv: b must be f32[2], got f32[3]");
  EXPECT_EQ(InferMessage({1, 3, 4, 4}, {2, 3, 3, 3}, {2}, {.dilation = {1, 2}}),
            "conv: a kernel of 3 that reaches over 5 does not fit an image of 4, padding included");
  EXPECT_EQ(InferMessage({1, 3, 4, 4}, {2, 3, 3, 3}, {2}, {.stride = {0, 1}}),
            "conv: stride and dilation must be positive and padding not negative, got stride [0, 1], padding "
            "[0, 0], dilation [1, 1]");
}

}  // namespace
}  // namespace weft
