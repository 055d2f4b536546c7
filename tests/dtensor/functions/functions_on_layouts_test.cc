// On any layout, functions give what they give on one device, forward and gradients; values are tested with the
// ops.

#include <limits>
#include <random>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

struct Function {
  const char* name;
  std::vector<Tensor> operands;
  std::function<DTensor(const std::vector<DTensor>&)> call;
};

Tensor Bools(const Shape& shape) {
  std::vector<double> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 != 1;
  return FromDoubles(DType::kBool, shape, values);
}

// Extents that split evenly, unevenly and not at all over 2, 3 and 2 x 2.
std::vector<Function> Functions() {
  using X = std::vector<DTensor>;
  std::vector<Function> functions = {
      {"bmm", {RandomF64({3, 2, 4}, 1), RandomF64({3, 4, 5}, 2)}, [](const X& x) { return Bmm(x[0], x[1]); }},
      {"linear with bias",
       {RandomF64({2, 3, 5}, 1), RandomF64({4, 5}, 2), RandomF64({4}, 3)},
       [](const X& x) { return LinearTransform(x[0], x[1], x[2]); }},
      {"linear",
       {RandomF64({3, 5}, 1), RandomF64({4, 5}, 2)},
       [](const X& x) { return LinearTransform(x[0], x[1]); }},
      {"batch norm",
       {RandomF64({5, 3, 2, 3}, 1), RandomF64({3}, 2), RandomF64({3}, 3)},
       [](const X& x) { return BatchNormalize(x[0], x[1], x[2], 0.1).y; }},
      {"batch norm of vectors",
       {RandomF64({5, 4}, 1), RandomF64({4}, 2)},
       [](const X& x) { return BatchNormalize(x[0], x[1], {}, 0.1).y; }},
      {"batch norm by statistics",
       {RandomF64({5, 3, 2}, 1), RandomF64({3}, 2), RandomF64({3}, 3, 0.5, 2), RandomF64({3}, 4),
        RandomF64({3}, 5)},
       [](const X& x) { return BatchNormalizeBy(x[0], x[1], x[2], x[3], x[4]); }},
      {"group norm",
       {RandomF64({3, 6, 5}, 1), RandomF64({6}, 2), RandomF64({6}, 3)},
       [](const X& x) { return GroupNormalize(x[0], 2, x[1], x[2], 0.1); }},
      {"group norm of groups that pieces cut",
       {RandomF64({2, 6, 2, 2}, 1), RandomF64({6}, 2)},
       [](const X& x) { return GroupNormalize(x[0], 3, x[1], {}, 0.1); }},
      {"instance norm",
       {RandomF64({2, 3, 5}, 1)},
       [](const X& x) { return GroupNormalize(x[0], 3, {}, {}, 0.1); }},
      {"conv2d",
       {RandomF64({3, 4, 5, 4}, 1), RandomF64({5, 4, 3, 2}, 2), RandomF64({5}, 3)},
       [](const X& x) {
         return Conv2d(x[0], x[1], x[2], {.stride = {1, 2}, .padding = {1, 1}});
       }},
      {"conv2d without bias",
       {RandomF64({2, 3, 3, 3}, 1), RandomF64({4, 3, 2, 2}, 2)},
       [](const X& x) { return Conv2d(x[0], x[1]); }},
      {"conv2d in groups",
       {RandomF64({3, 4, 4, 4}, 1), RandomF64({6, 2, 2, 2}, 2), RandomF64({6}, 3)},
       [](const X& x) { return Conv2d(x[0], x[1], x[2], {.groups = 2}); }},
      {"conv2d by channel",
       {RandomF64({2, 5, 4, 4}, 1), RandomF64({5, 1, 3, 3}, 2), RandomF64({5}, 3)},
       [](const X& x) {
         return Conv2d(x[0], x[1], x[2], {.padding = {1, 1}, .groups = 5});
       }},
      {"conv1d",
       {RandomF64({3, 4, 7}, 1), RandomF64({2, 4, 3}, 2), RandomF64({2}, 3)},
       [](const X& x) { return Conv1d(x[0], x[1], x[2], {.stride = 2, .padding = 1, .dilation = 2}); }},
      {"max pool",
       {RandomF64({3, 5, 5, 4}, 1)},
       [](const X& x) {
         return MaxPool2d(x[0], {.kernel = {3, 2}, .stride = {1, 0}, .padding = {1, 1}});
       }},
      {"max pool 1d", {RandomF64({3, 5, 9}, 1)}, [](const X& x) { return MaxPool1d(x[0], {.kernel = 2}); }},
      {"avg pool",
       {RandomF64({3, 5, 5, 4}, 1)},
       [](const X& x) {
         return AvgPool2d(x[0],
                          {.kernel = {3, 2}, .padding = {1, 1}, .ceil_mode = true, .count_padding = false});
       }},
      {"avg pool 1d",
       {RandomF64({3, 5, 9}, 1)},
       [](const X& x) { return AvgPool1d(x[0], {.kernel = 4, .stride = 3, .padding = 1}); }},
      {"attention",
       {RandomF64({2, 3, 4, 5}, 1), RandomF64({2, 6, 4, 5}, 2), RandomF64({2, 6, 4, 5}, 3)},
       [](const X& x) { return ScaledDotProductAttention(x[0], x[1], x[2]); }},
  };
  const auto add_masked = [&](const char* name, const Shape& q, const Shape& k, const Tensor& mask,
                              const AttentionOptions& options) {
    functions.push_back(
        {name, {RandomF64(q, 1), RandomF64(k, 2), RandomF64(k, 3), mask}, [options](const X& x) {
           AttentionOptions with_mask = options;
           with_mask.mask = x[3];
           return ScaledDotProductAttention(x[0], x[1], x[2], with_mask);
         }});
  };
  add_masked("attention with a bias", {3, 4, 2, 5}, {3, 4, 2, 5}, RandomF64({2, 4, 4}, 4),
             {.causal = true, .dropout = 0.4});
  add_masked("attention with a mask", {3, 4, 5, 2}, {3, 6, 5, 2}, Bools({3, 1, 4, 6}), {.scale = 0.7});
  add_masked("grouped attention with a bias", {2, 4, 2, 3, 2}, {2, 6, 2, 2}, RandomF64({2, 2, 3, 1, 6}, 4),
             {.causal = true, .dropout = 0.3});
  add_masked("attention of merged heads", {2, 4, 6, 2}, {2, 4, 3, 2}, RandomF64({1, 6, 4, 4}, 4),
             {.dropout = 0.3});
  return functions;
}

// y and the gradients of sum(y * weights) with respect to the floating operands, which the function sees in
// `layouts`; leaves, which cannot be Partial, rest replicated.
std::vector<Tensor> Results(const IntrusivePtr<MeshContext>& context, const Function& function,
                            const std::vector<Layout>& layouts) {
  context->state().set_seed(42);
  context->state().ResetCallNumbers();
  const auto replicated = [&](const Tensor& tensor) {
    return Lay(context, tensor, Layout(tensor.ndim(), context->mesh().num_axes()));
  };
  std::vector<DTensor> leaves, operands;
  for (size_t i = 0; i < function.operands.size(); ++i) {
    const bool floating = IsFloating(function.operands[i].dtype());
    leaves.push_back(replicated(function.operands[i]));
    if (floating) leaves.back() = leaves.back().RequiresGrad();
    operands.push_back(leaves.back().Redistribute(layouts[i]));
  }
  const DTensor y = function.call(operands);
  Backward(Sum(y * replicated(RandomF64(y.shape(), 99))));
  std::vector<Tensor> results = {y.FullTensor()};
  for (const DTensor& leaf : leaves) {
    if (leaf.requires_grad()) results.push_back(leaf.grad().FullTensor());
  }
  return results;
}

class FunctionsOnLayoutsTest : public testing::TestWithParam<std::string> {};

TEST_P(FunctionsOnLayoutsTest, EqualOneDevice) {
  for (const Function& function : Functions()) {
    std::vector<Tensor> expected;
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      std::vector<Layout> layouts;
      for (const Tensor& operand : function.operands) layouts.push_back(Layout(operand.ndim(), 0));
      expected = Results(context, function, layouts);
    });
    OnMesh(GetParam(), [&](const IntrusivePtr<MeshContext>& context) {
      std::mt19937_64 random(7);
      for (int round = 0; round < 12; ++round) {
        std::vector<Layout> layouts;
        std::string text = function.name;
        for (const Tensor& operand : function.operands) {
          // Terms of a Partial bool would mean nothing.
          const bool partial = IsFloating(operand.dtype());
          layouts.push_back(RandomLayout(context->mesh(), operand.ndim(), random, partial));
          absl::StrAppend(&text, " ", layouts.back().ToString(context->mesh()));
        }
        const std::vector<Tensor> got = Results(context, function, layouts);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(AllClose(got[i], expected[i], 1e-11)) << text << ", result " << i;
        }
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, FunctionsOnLayoutsTest, testing::Values("a=2", "a=3", "a=2,b=2"));

// Statistics of the global batch, wherever it is split, and nothing of x's size moves.
TEST(BatchNormTest, StatisticsAreGlobalBySmallCollectives) {
  const Tensor x = RandomF64({6, 4, 8, 8}, 1);
  std::vector<double> mean(4, 0.0), variance(4, 0.0);
  const std::vector<double> xs = x.ToVector<double>();
  for (size_t i = 0; i < xs.size(); ++i) mean[i / 64 % 4] += xs[i] / 384;
  for (size_t i = 0; i < xs.size(); ++i) variance[i / 64 % 4] += std::pow(xs[i] - mean[i / 64 % 4], 2) / 384;
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const char* layout : {"[a, -, b, -]", "[a.b, -, -, -]", "[-, a, -, b]"}) {
      const DTensor laid = Lay(context, x, layout);
      context->world().ledger().Clear();
      const BatchNormResult result = BatchNormalize(laid);
      result.y.ToLocal();
      EXPECT_EQ(LayoutText(result.y), layout);
      const std::vector<LedgerEntry> entries = context->world().ledger().entries();
      for (const LedgerEntry& entry : entries) {
        EXPECT_EQ(CollectiveName(entry.kind), "all_reduce") << layout;
        EXPECT_LE(entry.num_bytes, entry.calls * 2 * 3 * 4 * 8) << layout;  // four numbers over four ranks
      }
      EXPECT_TRUE(AllClose(result.mean.FullTensor(), Tensor::FromValues<double>({4}, mean), 1e-13));
      EXPECT_TRUE(AllClose(result.variance.FullTensor(), Tensor::FromValues<double>({4}, variance), 1e-13));
    }
  });
}

// Three groups of two channels, of which pieces of three channels cut one.
TEST(GroupNormTest, SplitChannelsAreNotGathered) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor y = GroupNormalize(Lay(context, RandomF64({2, 6, 8, 8}, 1), "[-, a, b, -]"), 3);
    EXPECT_EQ(LayoutText(y), "[-, a, b, -]");
    for (const LedgerEntry& entry : context->world().ledger().entries()) {
      EXPECT_EQ(CollectiveName(entry.kind), "all_reduce");
      EXPECT_LE(entry.num_bytes, entry.calls * 2 * 3 * 6 * 8);  // two images' three groups, over four ranks
    }
  });
}

TEST(BatchNormTest, RunningStatisticsAverage) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, Tensor::FromValues<double>({4, 1}, {1, 2, 3, 6}), "[a, -]").RequiresGrad();
    const BatchNormResult batch = BatchNormalize(x);
    EXPECT_FALSE(batch.mean.requires_grad());
    const RunningStatistics start = {Full(context, DType::kF64, {1}, 0), Full(context, DType::kF64, {1}, 1)};
    const RunningStatistics next = start.Updated(batch, 0.5);
    EXPECT_NEAR(next.mean.Item(), 1.5, 1e-15);
    EXPECT_NEAR(next.variance.Item(), 0.5 + 0.5 * 14.0 / 3, 1e-15);  // 14 = sum (x - 3)^2
    EXPECT_FALSE(next.variance.requires_grad());
  });
}

// v of ones gives the sum of the kept probabilities: every layout draws the same bits.
TEST(AttentionDropoutTest, SameBitsOnEveryLayout) {
  const Tensor q = RandomF64({4, 5, 3, 2}, 1);
  const auto draw = [&](const IntrusivePtr<MeshContext>& context, const Layout& layout) {
    context->state().set_seed(9);
    context->state().ResetCallNumbers();
    const DTensor x = Lay(context, q, layout);
    return ScaledDotProductAttention(x, x, x, {.dropout = 0.5}).FullTensor();
  };
  Tensor expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) { expected = draw(context, Layout(4, 0)); });
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const Layout& layout : AllLayouts(context->mesh(), 4, {})) {
      EXPECT_TRUE(SameBits(draw(context, layout), expected)) << layout;
    }
  });
}

TEST(AttentionDropoutTest, RunsInTrainingAlone) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({1, 6, 1, 3}, 1), Layout(4, 0));
    const Tensor plain = ScaledDotProductAttention(x, x, x).ToLocal();
    const Tensor dropped = ScaledDotProductAttention(x, x, x, {.dropout = 0.5}).ToLocal();
    EXPECT_FALSE(SameBits(dropped, plain));
    EXPECT_FALSE(SameBits(ScaledDotProductAttention(x, x, x, {.dropout = 0.5}).ToLocal(), dropped));
    const EvaluationGuard evaluation(context->state());
    EXPECT_TRUE(SameBits(ScaledDotProductAttention(x, x, x, {.dropout = 0.5}).ToLocal(), plain));
  });
}

// Channels in a row-parallel convolution stay where they are: y is a Partial sum.
TEST(ConvTest, SplitsAsPromised) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor x = RandomF64({2, 4, 5, 5}, 1);
    const Tensor w = RandomF64({6, 4, 3, 3}, 2);
    const Tensor b = RandomF64({6}, 3);
    const auto layout = [&](const char* x_layout, const char* w_layout, const char* b_layout) {
      return LayoutText(
          Conv2d(Lay(context, x, x_layout), Lay(context, w, w_layout), Lay(context, b, b_layout)));
    };
    EXPECT_EQ(layout("[a, -, -, -]", "[-, -, -, -]", "[-]"), "[a, -, -, -]");
    EXPECT_EQ(layout("[-, -, -, -]", "[a, -, -, -]", "[a]"), "[-, a, -, -]");
    EXPECT_EQ(layout("[-, a, -, -]", "[-, a, -, -]", "[-]"), "[-, -, -, -] P{a}");
    EXPECT_TRUE(context->world().ledger().entries().empty());
  });
}

TEST(FunctionsErrors, NameTheFunction) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const auto zeros = [&](const Shape& shape) { return Full(context, DType::kF32, shape, 0); };
    EXPECT_EQ(ErrorOf([&] {
                Bmm(zeros({2, 3}), zeros({3, 2}));
              }),
              "Bmm: expected [b, m, k] x [b, k, n], got f32[2, 3] [-, -] and f32[3, 2] [-, -]");
    EXPECT_EQ(
        ErrorOf([&] {
          LinearTransform(zeros({2, 3}), zeros({3, 2}));
        }),
        "LinearTransform: expected x [..., d] and weight [n, d], got f32[2, 3] [-, -] and f32[3, 2] [-, -]");
    EXPECT_EQ(ErrorOf([&] {
                LinearTransform(zeros({2, 3}), zeros({4, 3}), zeros({3}));
              }),
              "LinearTransform: expected a bias [n] for weight f32[4, 3] [-, -], got f32[3] [-]");
    EXPECT_THAT(ErrorOf([&] {
                  Conv1d(zeros({2, 3}), zeros({3, 2, 1}));
                }),
                HasSubstr("Conv1d: expected x [n, c, l]"));
    EXPECT_THAT(ErrorOf([&] {
                  Conv2d(zeros({2, 3, 4}), zeros({3, 2, 1, 1}));
                }),
                HasSubstr("Conv2d: expected x [n, c, h, w]"));
    EXPECT_THAT(ErrorOf([&] { MaxPool1d(zeros({2, 3}), {}); }), HasSubstr("MaxPool1d: expected x [n, c, l]"));
    EXPECT_EQ(ErrorOf([&] {
                GroupNormalize(zeros({2, 3}), 0);
              }),
              "GroupNormalize: expected at least one group, got 0");
    EXPECT_THAT(ErrorOf([&] { BatchNormalize(zeros({3})); }),
                HasSubstr("BatchNormalize: expected x [n, c, ...]"));
    const DTensor q = zeros({1, 2, 1, 2});
    EXPECT_EQ(ErrorOf([&] { ScaledDotProductAttention(q, q, q, {.dropout = 1}); }),
              "ScaledDotProductAttention: expected a dropout rate in [0, 1), got 1");
    EXPECT_THAT(ErrorOf([&] {
                  ScaledDotProductAttention(q, q, q, {.mask = zeros({3, 2})});
                }),
                HasSubstr("broadcasts to [1, 1, 2, 2]"));
  });
}

// Sums of integers wrap and those of bools are "or", whatever they are cast to.
TEST(FunctionsOnLayoutsTest, CastOfWhatIsNotFloatingReducesFirst) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x =
        Lay(context, Tensor::FromValues<int32_t>({2}, {std::numeric_limits<int32_t>::max(), 1}), "[a]");
    EXPECT_EQ(Cast(Sum(x), DType::kF64).Item(), std::numeric_limits<int32_t>::min());
    const DTensor flags =
        DTensor::FromLocal(context, Tensor::FromValues<bool>({1}, {true}), Layout(1, 1).WithPartial(0), {1});
    EXPECT_EQ(Cast(flags, DType::kF32).FullTensor().ToVector<float>(), std::vector<float>{1});
  });
}

TEST(FunctionsOnLayoutsTest, ConvertIsToAnyDtype) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor floats = FromDoubles(DType::kF32, {6}, {-2.75, -0.5, 0, 0.5, 3e9, nan});
  const Tensor integers = FromDoubles(DType::kI64, {4}, {-1, 0, 256, 5});
  for (const char* layout : {"[-]", "[a]"}) {
    OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
      const auto expect = [&](const Tensor& full, DType dtype, const std::vector<double>& expected) {
        const DTensor y = Convert(Lay(context, full, layout), dtype);
        EXPECT_EQ(LayoutText(y), layout);
        EXPECT_TRUE(SameBits(y.FullTensor(), FromDoubles(dtype, full.shape(), expected))) << dtype;
      };
      expect(floats, DType::kI32, {-2, 0, 0, 0, std::numeric_limits<int32_t>::max(), 0});
      expect(floats, DType::kI64, {-2, 0, 0, 0, 3e9, 0});
      expect(floats, DType::kU8, {0, 0, 0, 0, 255, 0});
      expect(floats, DType::kBool, {1, 1, 0, 1, 1, 1});
      expect(integers, DType::kU8, {255, 0, 0, 5});
      expect(integers, DType::kBool, {1, 0, 1, 1});
      expect(integers, DType::kF32, {-1, 0, 256, 5});
      // Terms that add up to 0 are not 0.
      const DTensor partial = Convert(Lay(context, integers, "[-] P{a}"), DType::kBool);
      EXPECT_TRUE(SameBits(partial.FullTensor(), FromDoubles(DType::kBool, {4}, {1, 0, 1, 1})));
      const DTensor x = Lay(context, floats, layout).RequiresGrad();
      EXPECT_EQ(Convert(x, DType::kF32).impl(), x.impl());
      EXPECT_FALSE(Convert(x, DType::kI32).requires_grad());
      Backward(Sum(Convert(x, DType::kF64)));
      EXPECT_EQ(x.grad().FullTensor().ToVector<double>(), std::vector<double>(6, 1));
    });
  }
}

}  // namespace
}  // namespace weft
