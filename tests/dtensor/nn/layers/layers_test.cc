// What PyTorch's numbers (tests/golden/golden_modules_test.cc) do not show: misuse, narrow dtypes, small batches, forwards that run
// again.

#include "dtensor/nn/layers/layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/gradient_hook.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

std::vector<double> ValuesOf(const std::optional<ModuleBuffer>& buffer) {
  return buffer->Value().FullTensor().ToVector<double>();
}

// Batches over more ranks than rows, one row or none on each; channels over more ranks than there are.
TEST(BatchNormTest, StatisticsAreThoseOfTheGlobalBatch) {
  for (const Shape& shape : {Shape{3, 2}, Shape{2, 5}, Shape{1, 3, 4}, Shape{7, 3, 2, 2}}) {
    const Tensor x = RandomF64(shape, 3, -1, 5);
    Tensor y;
    std::vector<double> mean, variance;
    const auto run = [&](const IntrusivePtr<MeshContext>& context, const Layout& layout) {
      Module root;
      BatchNorm norm(&root, "norm", shape[1]);
      Materialize(root, context, {.dtype = DType::kF64});
      Tensor made = norm(Lay(context, x, layout)).FullTensor();
      return std::tuple(made, ValuesOf(norm.running_mean), ValuesOf(norm.running_var));
    };
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      std::tie(y, mean, variance) = run(context, Layout(shape.ndim(), 0));
    });
    OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
      for (const Layout& layout : AllLayouts(context->mesh(), shape.ndim(), {ReduceOp::kSum})) {
        const auto [spread, spread_mean, spread_variance] = run(context, layout);
        EXPECT_TRUE(AllClose(spread, y, 1e-13)) << layout;
        for (size_t i = 0; i < mean.size(); ++i) {
          EXPECT_NEAR(spread_mean[i], mean[i], 1e-14) << layout;
          EXPECT_NEAR(spread_variance[i], variance[i], 1e-13) << layout;
        }
      }
    });
  }
}

// What the comparison above sees: statistics of each rank's own rows are others.
TEST(BatchNormTest, LocalStatisticsWouldBeSeen) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    BatchNorm norm(&root, "norm", 2);
    Materialize(root, context, {.dtype = DType::kF64});
    const DTensor x = Lay(context, RandomF64({7, 2}, 3, -1, 5), "[dp, -]");
    std::vector<double> local = x.ToLocal().ToVector<double>();
    const auto rows = static_cast<double>(local.size() / 2);
    for (size_t channel = 0; channel < 2; ++channel) {
      double mean = 0, variance = 0;
      for (size_t i = channel; i < local.size(); i += 2) mean += local[i] / rows;
      for (size_t i = channel; i < local.size(); i += 2)
        variance += (local[i] - mean) * (local[i] - mean) / rows;
      for (size_t i = channel; i < local.size(); i += 2)
        local[i] = (local[i] - mean) / std::sqrt(variance + 1e-5);
    }
    const Tensor own = Tensor::FromValues<double>(x.ToLocal().shape(), local);
    EXPECT_FALSE(AllClose(norm(x).ToLocal(), own, 1e-2));
  });
}

// Statistics of bf16 are f32's: in bf16 they would stand still.
TEST(BatchNormTest, NarrowDTypesKeepStatisticsInF32) {
  for (const auto& [at_rest, compute] : std::vector<std::pair<DType, DType>>{
           {DType::kBF16, DType::kBF16}, {DType::kF32, DType::kBF16}, {DType::kF64, DType::kF32}}) {
    OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
      Module root;
      BatchNorm1d norm(&root, "norm", 2);
      Materialize(root, context, {.dtype = at_rest, .compute_dtype = compute});
      EXPECT_EQ(norm.running_mean->Value().dtype(), at_rest == DType::kF64 ? DType::kF64 : DType::kF32);
      const DTensor x = Lay(context, FromDoubles(compute, {3, 2}, {1, 2, 3, 4, 5, 9}), "[dp, -]");
      EXPECT_EQ(norm(x).dtype(), compute);
      // 0.1 of the means 3 and 5; 0.9 and 0.1 of the variances 4 and 13, as of samples.
      EXPECT_NEAR(ValuesOf(norm.running_mean)[0], 0.3, 1e-6);
      EXPECT_NEAR(ValuesOf(norm.running_mean)[1], 0.5, 1e-6);
      EXPECT_NEAR(ValuesOf(norm.running_var)[0], 1.3, 1e-6);
      EXPECT_NEAR(ValuesOf(norm.running_var)[1], 2.2, 1e-6);
      norm.Eval();
      EXPECT_EQ(norm(x).dtype(), compute);
    });
  }
}

TEST(BatchNormTest, AForwardThatBackwardRunsAgainLeavesStatisticsAlone) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    BatchNorm1d norm(&root, "norm", 2);
    Materialize(root, context, {.dtype = DType::kF64});
    const DTensor x = Lay(context, RandomF64({5, 2}, 1), "[dp, -]").RequiresGrad();
    std::vector<double> once;
    const DTensor y = OnGradient(norm(x), [&](const DTensor& gradient) {
                        once = ValuesOf(norm.running_mean);
                        norm(x);
                        return gradient;
                      }).value;
    Backward(Sum(y));
    EXPECT_EQ(ValuesOf(norm.running_mean), once);
    EXPECT_EQ(norm.num_batches_tracked->Value().Item(), 1);
    // Without gradients they move, as in PyTorch: to measure them anew.
    const NoGradGuard no_grad(context->state());
    norm(x);
    EXPECT_EQ(norm.num_batches_tracked->Value().Item(), 2);
  });
}

TEST(BatchNormTest, AnOptionsMomentumOfNoneWeighsAllBatchesAlike) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    BatchNorm1d norm(&root, "norm", 1, {.momentum = std::nullopt});
    Materialize(root, context, {.dtype = DType::kF64});
    for (const double mean : {3.0, 5.0, 10.0}) {
      norm(Lay(context, Tensor::FromValues<double>({2, 1}, {mean - 1, mean + 1}), "[dp, -]"));
    }
    EXPECT_NEAR(ValuesOf(norm.running_mean)[0], 6, 1e-14);
    EXPECT_NEAR(ValuesOf(norm.running_var)[0], 2, 1e-14);
  });
}

// PyTorch's running_mean = None and its like: slots that are taken away before the model has values.
TEST(BatchNormTest, WithoutItsStatisticsItGoesByTheBatch) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    BatchNorm1d whole(&root, "whole", 2), none(&root, "none", 2), uncounted(&root, "uncounted", 2);
    BatchNorm1d half(&root, "half", 2), unweighed(&root, "unweighed", 2, {.momentum = std::nullopt});
    none.running_mean.reset();
    none.running_var.reset();
    none.num_batches_tracked.reset();
    half.running_var.reset();
    for (BatchNorm1d* norm : {&uncounted, &unweighed}) norm->num_batches_tracked.reset();
    Materialize(root, context, {.dtype = DType::kF64});
    const DTensor x = Lay(context, RandomF64({5, 2}, 1), "[dp, -]");
    const Tensor y = whole(x).FullTensor();
    EXPECT_TRUE(SameBits(none(x).FullTensor(), y));
    EXPECT_TRUE(SameBits(uncounted(x).FullTensor(), y));
    EXPECT_EQ(ValuesOf(uncounted.running_mean), ValuesOf(whole.running_mean));
    EXPECT_EQ(ValuesOf(uncounted.running_var), ValuesOf(whole.running_var));
    root.Eval();
    EXPECT_TRUE(SameBits(none(x).FullTensor(), y));
    EXPECT_FALSE(SameBits(uncounted(x).FullTensor(), y));
    root.Train();
    EXPECT_EQ(ErrorOf([&] { half(x); }),
              "batch norm 'half': expected running_mean and running_var, or neither, got running_mean alone");
    EXPECT_EQ(ErrorOf([&] { unweighed(x); }),
              "batch norm 'unweighed': without a momentum batches weigh by num_batches_tracked: expected it, "
              "got none");
  });
}

TEST(BatchNormTest, Misuse) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    EXPECT_EQ(ErrorOf([&] { BatchNorm(&root, "x", 0); }),
              "batch norm 'x': expected at least one channel, got 0");
    EXPECT_EQ(ErrorOf([&] { BatchNorm(&root, "x", 1, {.momentum = 2}); }),
              "batch norm 'x': expected a momentum from 0 to 1, got 2");
    EXPECT_EQ(ErrorOf([&] { GroupNorm(&root, "x", 2, 3); }),
              "group norm 'x': 2 groups do not divide 3 channels");
    BatchNorm1d one(&root, "one", 3);
    BatchNorm2d two(&root, "two", 3);
    Materialize(root, context);
    const auto x = [&](const Shape& shape) { return Full(context, DType::kF32, shape, 1); };
    EXPECT_EQ(ErrorOf([&] {
                one(x({2, 4}));
              }),
              "batch norm 'one': expected x [n, 3, ...], got f32[2, 4] [-, -]");
    EXPECT_EQ(ErrorOf([&] {
                one(x({2, 3, 1, 1}));
              }),
              "batch norm 'one': expected x [n, c] or [n, c, l], got f32[2, 3, 1, 1] [-, -, -, -]");
    EXPECT_EQ(ErrorOf([&] {
                two(x({2, 3}));
              }),
              "batch norm 'two': expected x [n, c, h, w], got f32[2, 3] [-, -]");
    EXPECT_EQ(
        ErrorOf([&] {
          one(x({1, 3}));
        }),
        "batch norm 'one': expected more than one element per channel in training, got f32[1, 3] [-, -]");
    one.Eval();
    EXPECT_EQ(ErrorOf([&] { one(x({1, 3})); }), "nothing was thrown");
    EXPECT_EQ(ErrorOf([&] { one(x({0, 3})); }), "nothing was thrown");
  });
}

TEST(ConvolutionTest, Misuse) {
  Module root;
  EXPECT_EQ(ErrorOf([&] { nn::Conv2d(&root, "x", 4, 6, 3, {.groups = 4}); }),
            "convolution 'x': expected channels of at least 1 that 4 groups divide, got 4 and 6");
  EXPECT_EQ(ErrorOf([&] { nn::Conv1d(&root, "x", 0, 6, 3); }),
            "convolution 'x': expected channels of at least 1 that 1 groups divide, got 0 and 6");
  EXPECT_EQ(ErrorOf([&] { nn::Conv1d(&root, "x", 4, 6, 0); }),
            "convolution 'x': expected a kernel of at least 1, got 0");
}

// PyTorch's first values: within 1 / sqrt(in / groups x kernel).
TEST(ConvolutionTest, FirstValuesAreWithinTheFan) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    nn::Conv2d conv(&root, "conv", 8, 64, 3, {.groups = 2});
    Materialize(root, context);
    for (const Parameter* parameter : {&conv.weight, &*conv.bias}) {
      double most = 0;
      for (double value : parameter->at_rest().FullTensor().ToVector<double>()) {
        most = std::max(most, std::abs(value));
      }
      EXPECT_LE(most, 1.0 / 6);
      EXPECT_GT(most, 0.9 / 6);
    }
  });
}

TEST(DropoutTest, GoesByTheModulesMode) {
  EXPECT_EQ(ErrorOf([] {
              Module root;
              nn::Dropout(&root, "x", 1);
            }),
            "dropout 'x': expected a rate in [0, 1), got 1");
  Tensor expected;
  for (const char* mesh : {"", "dp=2", "dp=4"}) {
    OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
      Sequential net;
      net.Add<nn::Dropout>(0.25);
      Materialize(net, context);
      const bool splits = context->mesh().num_axes() > 0;
      const DTensor x = Lay(context, WholeNumbers(DType::kF32, {5, 7}), splits ? "[dp, -]" : "[-, -]");
      const Tensor dropped = net(x).FullTensor();
      EXPECT_FALSE(SameBits(dropped, x.FullTensor()));
      if (mesh[0] == '\0') {
        expected = dropped;
      } else {
        EXPECT_TRUE(SameBits(dropped, expected));
      }
      net.Eval();
      EXPECT_TRUE(SameBits(net(x).FullTensor(), x.FullTensor()));
    });
  }
}

TEST(PoolingTest, AdaptiveMisuse) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kF32, {1, 1, 4, 4}, 1);
    EXPECT_EQ(ErrorOf([&] {
                AdaptiveAvgPool2d(x, {0, 2});
              }),
              "AdaptiveAvgPool2d: expected extents of at least 1, got 0 of f32[1, 1, 4, 4] [-, -, -, -]");
    EXPECT_EQ(ErrorOf([&] {
                AdaptiveAvgPool2d(Squeeze(x), {1, 1});
              }),
              "AdaptiveAvgPool2d: expected x [n, c, h, w], got f32[4, 4] [-, -]");
    EXPECT_EQ(ErrorOf([&] { AdaptiveAvgPool1d(x, 1); }),
              "AdaptiveAvgPool1d: expected x [n, c, l], got f32[1, 1, 4, 4] [-, -, -, -]");
    EXPECT_EQ(ErrorOf([&] { AdaptiveAvgPool1d(Squeeze(x, 0), 0); }),
              "AdaptiveAvgPool1d: expected extents of at least 1, got 0 of f32[1, 4, 4] [-, -, -]");
  });
}

TEST(PoolingTest, AdaptiveOnMeta) {
  const auto on_meta = [](World& world) {
    const IntrusivePtr<MeshContext> context = Bind(world, DeviceMesh());
    const DTensor y = AdaptiveAvgPool2d(Full(context, DType::kF32, {2, 3, 5, 7}, 1), {2, 3});
    EXPECT_EQ(y.shape(), Shape({2, 3, 2, 3}));
    EXPECT_EQ(y.ToLocal().device().type, DeviceType::kMeta);
  };
  RunRanks(1, on_meta, {.device = DeviceType::kMeta});
}

// Rows and columns that are split: no halo is needed for means.
TEST(PoolingTest, AdaptiveOnAnyLayout) {
  const Tensor x = RandomF64({2, 3, 5, 7}, 1);
  for (const std::array<int64_t, 2>& extents : {std::array<int64_t, 2>{1, 1}, {2, 3}, {5, 1}, {1, 4}}) {
    Tensor expected;
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      expected = AdaptiveAvgPool2d(Lay(context, x, "[-, -, -, -]"), extents).ToLocal();
    });
    OnMesh("a=3", [&](const IntrusivePtr<MeshContext>& context) {
      for (const Layout& layout : AllLayouts(context->mesh(), 4, {ReduceOp::kSum})) {
        EXPECT_TRUE(
            AllClose(AdaptiveAvgPool2d(Lay(context, x, layout), extents).FullTensor(), expected, 1e-14));
      }
    });
  }
}

// A window's mean is made of its own elements: 0 times an inf of another one would be nan.
TEST(PoolingTest, AdaptiveWindowsKeepInfAndNanToThemselves) {
  const double inf = INFINITY;
  const Tensor row = FromDoubles(DType::kF32, {1, 1, 4}, {inf, 1, 2, 3});
  const Tensor image = FromDoubles(DType::kF32, {1, 1, 4, 2}, {1, 2, 3, 4, 5, NAN, 7, -inf});
  for (const char* mesh : {"", "a=2"}) {
    OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
      const bool splits = mesh[0] != '\0';
      const DTensor x = Lay(context, row, splits ? "[-, -, a]" : "[-, -, -]");
      EXPECT_TRUE(
          SameBits(AdaptiveAvgPool1d(x, 2).FullTensor(), FromDoubles(DType::kF32, {1, 1, 2}, {inf, 2.5})));
      // Windows of elements 0 to 1, 1 to 2 and 2 to 3.
      EXPECT_TRUE(SameBits(AdaptiveAvgPool1d(x, 3).FullTensor(),
                           FromDoubles(DType::kF32, {1, 1, 3}, {inf, 1.5, 2.5})));
      const DTensor y = Lay(context, image, splits ? "[-, -, a, -]" : "[-, -, -, -]");
      EXPECT_TRUE(AllClose(AdaptiveAvgPool2d(y, {2, 2}).FullTensor(),
                           FromDoubles(DType::kF32, {1, 1, 2, 2}, {2, 3, 6, NAN}), 0));
    });
  }
}

// Only products take the dtype of the guard, and means are none.
TEST(PoolingTest, AdaptiveMeansAreOfTheOperandsDtypeUnderAutocast) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const AutocastGuard guard(context->state(), DType::kBF16);
    const DTensor x = Full(context, DType::kF32, {1, 1, 6, 4}, 0.1);
    for (const std::array<int64_t, 2>& extents :
         {std::array<int64_t, 2>{1, 1}, {6, 4}, {3, 2}, {4, 3}, {1, 2}}) {
      EXPECT_EQ(AdaptiveAvgPool2d(x, extents).dtype(), DType::kF32) << extents[0] << ", " << extents[1];
    }
  });
}

}  // namespace
}  // namespace weft
