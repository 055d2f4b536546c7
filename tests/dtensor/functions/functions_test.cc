#include "dtensor/functions.h"

#include <cmath>

#include "dtensor/autograd/backward.h"
#include "dtensor/context/propagation_cache.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

// Functions on one device, where only what they do with their arguments can be wrong; kernels are tested with
// the ops, and other layouts in dispatch_test.
void OnOneDevice(const std::function<void(const IntrusivePtr<MeshContext>&)>& body) { OnMesh("", body); }

DTensor Values(const IntrusivePtr<MeshContext>& context, const Shape& shape,
               const std::vector<double>& values) {
  return Lay(context, Tensor::FromValues<double>(shape, values), Layout(shape.ndim(), 0));
}

std::vector<double> Elements(const DTensor& x) { return x.FullTensor().ToVector<double>(); }

TEST(FunctionsTest, MatMulOfAnyLeadingDims) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2, 1, 2}, {1, 2, 3, 4});
    const DTensor w = Values(context, {2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(MatMul(x, w).shape(), Shape({2, 1, 3}));
    EXPECT_EQ(Elements(MatMul(x, w)), (std::vector<double>{9, 12, 15, 19, 26, 33}));
    // Batched: each row with a matrix of its own.
    const DTensor batch = Values(context, {2, 2, 1}, {1, 2, 10, 20});
    EXPECT_EQ(Elements(MatMul(x, batch)), (std::vector<double>{5, 110}));
    // As many dims as there may be.
    const DTensor deep = Values(context, {1, 1, 1, 1, 1, 1, 1, 2}, {1, 2});
    EXPECT_EQ(Elements(MatMul(deep, Values(context, {2, 1}, {3, 5}))), std::vector<double>{13});
    EXPECT_EQ(Elements(MatMul(deep, Values(context, {1, 1, 1, 1, 1, 1, 2, 1}, {3, 5}))),
              std::vector<double>{13});
  });
}

TEST(FunctionsTest, ReductionsOfDimsFromEitherEnd) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(Sum(x).ToString(), "f64[] []");
    EXPECT_EQ(Sum(x).Item(), 21);
    EXPECT_EQ(Mean(x).Item(), 3.5);
    EXPECT_EQ(Elements(Sum(x, {0})), (std::vector<double>{5, 7, 9}));
    EXPECT_EQ(Elements(Sum(x, {-1})), (std::vector<double>{6, 15}));
    EXPECT_EQ(Elements(Mean(x, {1})), (std::vector<double>{2, 5}));
    EXPECT_EQ(Sum(x, {0, -1}).shape(), Shape());
    EXPECT_EQ(Mean(x, {-1}, /*keep_dims=*/true).shape(), Shape({2, 1}));
    EXPECT_EQ(Sum(x, {}, /*keep_dims=*/true).shape(), Shape({1, 1}));
    EXPECT_EQ(Sum(Full(context, DType::kF64, {}, 4)).Item(), 4);
    EXPECT_THAT(ErrorOf([&] { Mean(x, {-3}); }), HasSubstr("Mean"));
  });
}

TEST(FunctionsTest, StatisticsAndOrder) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2, 3}, {3, -4, 0, 1, 1, 4});
    EXPECT_EQ(Elements(Max(x, {-1})), (std::vector<double>{3, 4}));
    EXPECT_EQ(Elements(Min(x, {0}, /*keep_dims=*/true)), (std::vector<double>{1, -4, 0}));
    EXPECT_EQ(Elements(Prod(x, {-1})), (std::vector<double>{0, 4}));
    EXPECT_EQ(Elements(Any(x, {0})), (std::vector<double>{1, 1, 1}));
    EXPECT_EQ(Elements(All(x, {1})), (std::vector<double>{0, 1}));
    EXPECT_EQ(Elements(Argmax(x, -1)), (std::vector<double>{0, 2}));
    EXPECT_EQ(Argmin(x, 0, /*keep_dim=*/true).ToString(), "i64[1, 3] [-, -]");
    const auto near = [](const DTensor& got, const std::vector<double>& exact) {
      return AllClose(got.FullTensor(), Tensor::FromValues<double>({2}, exact), 1e-14);
    };
    EXPECT_TRUE(near(Var(x, {-1}), {37.0 / 3, 3}));
    EXPECT_TRUE(near(Var(x, {-1}, {.correction = 0}), {74.0 / 9, 2}));
    EXPECT_EQ(Std(x, {-1}, {.keep_dims = true}).shape(), Shape({2, 1}));
    EXPECT_EQ(Elements(Std(x, {0}, {.correction = 0})), (std::vector<double>{1, 2.5, 2}));
    EXPECT_TRUE(near(Norm(x, 2, {1}), {5, std::sqrt(18.0)}));
    EXPECT_EQ(Norm(x, 1).Item(), 13);
    EXPECT_NEAR(LogSumExp(Values(context, {2}, {std::log(3), std::log(5)})).Item(), std::log(8), 1e-15);
    EXPECT_EQ(Elements(CumSum(x, -1)), (std::vector<double>{3, -1, -1, 1, 2, 6}));
    EXPECT_EQ(Elements(Sort(x).values), (std::vector<double>{-4, 0, 3, 1, 1, 4}));
    EXPECT_EQ(Elements(Sort(x, -1, /*descending=*/true).indices), (std::vector<double>{0, 2, 1, 2, 0, 1}));
    EXPECT_EQ(Elements(TopK(x, 1).values), (std::vector<double>{3, 4}));
    EXPECT_EQ(Elements(TopK(x, 1, {.dim = 0, .largest = false}).indices), (std::vector<double>{1, 0, 0}));
    EXPECT_THAT(ErrorOf([&] { Argmax(x, 2); }), HasSubstr("Argmax"));
    EXPECT_THAT(ErrorOf([&] { Var(x, {-3}); }), HasSubstr("Var"));
  });
}

TEST(FunctionsTest, ShapesAndParts) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(Elements(Transpose(x, 0, -1)), (std::vector<double>{1, 4, 2, 5, 3, 6}));
    EXPECT_EQ(Elements(Permute(x, {-1, 0})), (std::vector<double>{1, 4, 2, 5, 3, 6}));
    EXPECT_EQ(Elements(Slice(x, -1, 1, 2)), (std::vector<double>{2, 3, 5, 6}));
    EXPECT_EQ(Reshape(x, {3, 1, 2}).shape(), Shape({3, 1, 2}));
    EXPECT_EQ(Elements(Concat({x, Slice(x, 0, 1, 1)}, 0)), (std::vector<double>{1, 2, 3, 4, 5, 6, 4, 5, 6}));
    EXPECT_EQ(Stack({x, x}, -1).shape(), Shape({2, 3, 2}));
    EXPECT_EQ(Stack({x, x}, 0).shape(), Shape({2, 2, 3}));
    const std::vector<DTensor> columns = Unbind(x, -1);
    ASSERT_EQ(columns.size(), 3u);
    EXPECT_EQ(Elements(columns[1]), (std::vector<double>{2, 5}));
    EXPECT_THAT(ErrorOf([&] { Permute(x, {0, 2}); }), HasSubstr("Permute"));
    EXPECT_THAT(ErrorOf([&] { Stack({}, 0); }), HasSubstr("Stack: expected at least one tensor"));
    EXPECT_THAT(ErrorOf([&] { Concat({x}, 2); }), HasSubstr("Concat"));
  });
}

TEST(FunctionsTest, Views) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2, 1, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(Flatten(x).shape(), Shape({6}));
    EXPECT_EQ(Flatten(x, 1).shape(), Shape({2, 3}));
    EXPECT_EQ(Flatten(x, -3, -2).shape(), Shape({2, 3}));
    EXPECT_EQ(Flatten(Full(context, DType::kF64, {}, 4)).shape(), Shape({1}));
    EXPECT_EQ(Unflatten(x, -1, {3, -1, 1}).shape(), Shape({2, 1, 3, 1, 1}));
    EXPECT_EQ(Squeeze(x).shape(), Shape({2, 3}));
    EXPECT_EQ(Squeeze(x, 1).shape(), Shape({2, 3}));
    EXPECT_EQ(Squeeze(x, 0).shape(), x.shape());
    EXPECT_EQ(Unsqueeze(x, -1).shape(), Shape({2, 1, 3, 1}));
    EXPECT_EQ(Unsqueeze(x, 0).shape(), Shape({1, 2, 1, 3}));
    EXPECT_EQ(View(x, {3, -1}).shape(), Shape({3, 2}));
    EXPECT_EQ(Elements(Reshape(x, {-1, 2})), (std::vector<double>{1, 2, 3, 4, 5, 6}));
    const DTensor column = Values(context, {2, 1}, {1, 2});
    EXPECT_EQ(Elements(Expand(column, {2, -1, 2})), (std::vector<double>{1, 1, 2, 2, 1, 1, 2, 2}));
  });
}

TEST(FunctionsTest, ElementsMoveAlongDims) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2, 3}, {1, 2, 3, 4, 5, 6});
    EXPECT_EQ(Elements(Split(x, {1, 2}, -1)[1]), (std::vector<double>{2, 3, 5, 6}));
    const std::vector<DTensor> parts = Split(x, 2, 1);
    ASSERT_EQ(parts.size(), 2u);
    EXPECT_EQ(Elements(parts[0]), (std::vector<double>{1, 2, 4, 5}));
    EXPECT_EQ(Elements(parts[1]), (std::vector<double>{3, 6}));
    EXPECT_EQ(Elements(Pad(x, {{0, 0}, {1, 0}})), (std::vector<double>{0, 1, 2, 3, 0, 4, 5, 6}));
    EXPECT_EQ(Elements(Pad(x, {{0, 1}, {0, 0}}, 9)), (std::vector<double>{1, 2, 3, 4, 5, 6, 9, 9, 9}));
    EXPECT_EQ(Elements(Roll(x, 1, 1)), (std::vector<double>{3, 1, 2, 6, 4, 5}));
    EXPECT_EQ(Elements(Flip(x, {-1, 0})), (std::vector<double>{6, 5, 4, 3, 2, 1}));
    EXPECT_EQ(Elements(Tril(x)), (std::vector<double>{1, 0, 0, 4, 5, 0}));
    EXPECT_EQ(Elements(Triu(x, 1)), (std::vector<double>{0, 2, 3, 0, 0, 6}));
  });
}

TEST(FunctionsTest, ElementsByIndex) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const auto index = [&](const Shape& shape, const std::vector<int64_t>& values) {
      return Lay(context, Tensor::FromValues<int64_t>(shape, values), Layout(shape.ndim(), 0));
    };
    const DTensor x = Values(context, {2, 3}, {1, 2, 3, 4, 5, 6});
    const DTensor s = Values(context, {2, 2}, {10, 20, 30, 40});
    EXPECT_EQ(Elements(IndexSelect(x, -1, index({2}, {2, 2}))), (std::vector<double>{3, 3, 6, 6}));
    EXPECT_EQ(Elements(IndexAdd(x, 1, index({2}, {2, 2}), s)), (std::vector<double>{1, 2, 33, 4, 5, 76}));
    EXPECT_EQ(Elements(IndexCopy(x, 1, index({2}, {2, 0}), s)), (std::vector<double>{20, 2, 10, 40, 5, 30}));
    EXPECT_EQ(Elements(Gather(x, 1, index({2, 2}, {2, 0, 1, 1}))), (std::vector<double>{3, 1, 5, 5}));
    // Shorter than x in another dim: the leading part.
    EXPECT_EQ(Elements(Gather(x, 1, index({1, 2}, {2, 0}))), (std::vector<double>{3, 1}));
    EXPECT_EQ(Elements(ScatterAdd(x, 1, index({2, 2}, {2, 0, 1, 1}), s)),
              (std::vector<double>{21, 2, 13, 4, 75, 6}));
    EXPECT_EQ(Elements(ScatterAdd(x, 1, index({1, 1}, {2}), s)), (std::vector<double>{1, 2, 13, 4, 5, 6}));
  });
}

TEST(FunctionsTest, ContractNamesDims) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2, 2}, {1, 2, 3, 4});
    EXPECT_EQ(Elements(Contract(x, "ab", x, "ab", "")), std::vector<double>{30});
    EXPECT_EQ(Elements(Contract(x, "ab", x, "cb", "ca")), (std::vector<double>{5, 11, 11, 25}));
    EXPECT_THAT(ErrorOf([&] { Contract(x, "a", x, "ab", "a"); }), HasSubstr("name 1 dims"));
    EXPECT_THAT(ErrorOf([&] { Contract(x, "aB", x, "ab", "a"); }), HasSubstr("'B'"));
  });
}

TEST(FunctionsTest, ArithmeticAndElementwise) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2}, {0.25, 4});
    const DTensor y = Values(context, {2}, {2, -1});
    EXPECT_EQ(Elements(x + y), (std::vector<double>{2.25, 3}));
    EXPECT_EQ(Elements(x - y), (std::vector<double>{-1.75, 5}));
    EXPECT_EQ(Elements(x * y), (std::vector<double>{0.5, -4}));
    EXPECT_EQ(Elements(x / y), (std::vector<double>{0.125, -4}));
    EXPECT_EQ(Elements(x * 2), (std::vector<double>{0.5, 8}));
    EXPECT_EQ(Elements(2 * x), (std::vector<double>{0.5, 8}));
    EXPECT_EQ(Elements(Sqrt(x)), (std::vector<double>{0.5, 2}));
    EXPECT_EQ(Elements(Square(x)), (std::vector<double>{0.0625, 16}));
    EXPECT_EQ(Elements(Relu(y)), (std::vector<double>{2, 0}));
    const auto near = [&](const DTensor& got, const std::function<double(double)>& exact) {
      return AllClose(got.FullTensor(), Tensor::FromValues<double>({2}, {exact(0.25), exact(4)}), 1e-14);
    };
    EXPECT_TRUE(near(Exp(x), [](double v) { return std::exp(v); }));
    EXPECT_TRUE(near(Log(x), [](double v) { return std::log(v); }));
    EXPECT_TRUE(near(Tanh(x), [](double v) { return std::tanh(v); }));
    EXPECT_TRUE(near(Silu(x), [](double v) { return v / (1 + std::exp(-v)); }));
    EXPECT_TRUE(near(Gelu(x), [](double v) {
      return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
    }));
    EXPECT_EQ(Cast(x, DType::kF64).impl(), x.impl());
    EXPECT_EQ(Cast(x, DType::kBF16).dtype(), DType::kBF16);
  });
}

TEST(FunctionsTest, ArithmeticWithNumbers) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2}, {0.25, -4});
    EXPECT_EQ(Elements(x + 1), (std::vector<double>{1.25, -3}));
    EXPECT_EQ(Elements(1 + x), (std::vector<double>{1.25, -3}));
    EXPECT_EQ(Elements(x - 1), (std::vector<double>{-0.75, -5}));
    EXPECT_EQ(Elements(1 - x), (std::vector<double>{0.75, 5}));
    EXPECT_EQ(Elements(x / 2), (std::vector<double>{0.125, -2}));
    EXPECT_EQ(Elements(2 / x), (std::vector<double>{8, -0.5}));
    EXPECT_EQ(Elements(-x), (std::vector<double>{-0.25, 4}));
    EXPECT_EQ(Elements(Pow(x, 2)), (std::vector<double>{0.0625, 16}));
    EXPECT_EQ(Elements(Pow(2, x * 4)), (std::vector<double>{2, std::exp2(-16)}));
    EXPECT_EQ(Elements(Pow(Abs(x), x)), (std::vector<double>{std::pow(0.25, 0.25), std::pow(4, -4)}));
    EXPECT_EQ(Elements(Abs(x)), (std::vector<double>{0.25, 4}));
    EXPECT_EQ(Elements(Sign(x)), (std::vector<double>{1, -1}));
    EXPECT_EQ(Elements(Rsqrt(Abs(x))), (std::vector<double>{2, 0.5}));
    EXPECT_NEAR(Elements(Sin(x))[1], std::sin(-4), 1e-15);
    EXPECT_NEAR(Elements(Cos(x))[1], std::cos(-4), 1e-15);
    EXPECT_NEAR(Elements(Erf(x))[0], std::erf(0.25), 1e-15);
    EXPECT_NEAR(Elements(Sigmoid(x))[1], 1 / (1 + std::exp(4)), 1e-15);
    EXPECT_NEAR(Elements(GeluExact(x))[0], 0.125 * (1 + std::erf(0.25 / std::sqrt(2))), 1e-15);
    const DTensor whole = Arange(context, DType::kI64, 0, 3);
    EXPECT_EQ(Elements(whole * 2 + 1 - whole), (std::vector<double>{1, 2, 3}));
    EXPECT_THAT(ErrorOf([&] { whole + 0.5; }), HasSubstr("expected a whole number"));
    EXPECT_THAT(ErrorOf([&] { whole / 2; }), HasSubstr("div_scalar: expected a floating dtype"));
  });
}

TEST(FunctionsTest, ComparisonsAndChoices) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {3}, {1, 2, 3});
    const DTensor y = Values(context, {3}, {3, 2, 1});
    const auto bools = [](const DTensor& answer) {
      EXPECT_EQ(answer.dtype(), DType::kBool);
      return answer.ToLocal().ToVector<bool>();
    };
    using Bools = std::vector<bool>;
    EXPECT_EQ(bools(Equal(x, y)), (Bools{false, true, false}));
    EXPECT_EQ(bools(NotEqual(x, y)), (Bools{true, false, true}));
    EXPECT_EQ(bools(Less(x, y)), (Bools{true, false, false}));
    EXPECT_EQ(bools(LessEqual(x, y)), (Bools{true, true, false}));
    EXPECT_EQ(bools(Greater(x, y)), (Bools{false, false, true}));
    EXPECT_EQ(bools(GreaterEqual(x, y)), (Bools{false, true, true}));
    EXPECT_EQ(bools(Equal(x, 2)), (Bools{false, true, false}));
    EXPECT_EQ(bools(NotEqual(x, 2)), (Bools{true, false, true}));
    EXPECT_EQ(bools(Less(x, 2)), (Bools{true, false, false}));
    EXPECT_EQ(bools(LessEqual(x, 2)), (Bools{true, true, false}));
    EXPECT_EQ(bools(Greater(x, 2)), (Bools{false, false, true}));
    EXPECT_EQ(bools(GreaterEqual(x, 2)), (Bools{false, true, true}));
    EXPECT_EQ(bools(IsNan(x / (x - 2) * 0)), (Bools{false, true, false}));
    EXPECT_EQ(bools(IsFinite(x / (x - 2))), (Bools{true, false, true}));
    const DTensor low = Less(x, 3);
    const DTensor high = Greater(x, 1);
    EXPECT_EQ(bools(LogicalAnd(low, high)), (Bools{false, true, false}));
    EXPECT_EQ(bools(LogicalOr(low, high)), (Bools{true, true, true}));
    EXPECT_EQ(bools(LogicalXor(low, high)), (Bools{true, false, true}));
    EXPECT_EQ(bools(LogicalNot(low)), (Bools{false, false, true}));
    EXPECT_EQ(Elements(Where(low, x, y)), (std::vector<double>{1, 2, 1}));
    EXPECT_EQ(Elements(Where(low, x, -1)), (std::vector<double>{1, 2, -1}));
    EXPECT_EQ(Elements(Where(low, -1, y)), (std::vector<double>{-1, -1, 1}));
    EXPECT_EQ(Elements(MaskedFill(x, low, -INFINITY)), (std::vector<double>{-INFINITY, -INFINITY, 3}));
    EXPECT_EQ(Elements(Maximum(x, y)), (std::vector<double>{3, 2, 3}));
    EXPECT_EQ(Elements(Minimum(x, y)), (std::vector<double>{1, 2, 1}));
    EXPECT_EQ(Elements(Maximum(x, 2)), (std::vector<double>{2, 2, 3}));
    EXPECT_EQ(Elements(Minimum(x, 2)), (std::vector<double>{1, 2, 2}));
    EXPECT_EQ(Elements(Clamp(x, {.min = 2})), (std::vector<double>{2, 2, 3}));
    EXPECT_EQ(Elements(Clamp(x, {.max = 2})), (std::vector<double>{1, 2, 2}));
    EXPECT_EQ(Elements(Clamp(x, {.min = 1.5, .max = 2.5})), (std::vector<double>{1.5, 2, 2.5}));
    EXPECT_THAT(ErrorOf([&] { Clamp(x, {}); }), HasSubstr("Clamp: expected a min"));
    EXPECT_THAT(ErrorOf([&] { Less(Arange(context, DType::kI32, 0, 2), 0.5); }),
                HasSubstr("i32 cannot hold the number 0.5"));
    // Another number is the same cached call.
    const int64_t misses = context->cache().stats().misses;
    for (double number : {3.0, 4.0}) Pow(Greater(x, number).defined() ? x + number : x, number);
    EXPECT_EQ(context->cache().stats().misses, misses + 1);  // of Pow
  });
}

// Gradients of everything that choices and numbers can be made of. Where dim 0 of the leaf is split, what
// they choose from is Partial.
TEST(FunctionsTest, GradientsThroughChoicesOnEveryLayout) {
  const Tensor full = RandomF64({2, 4, 3}, 5);
  const auto loss_of = [](const DTensor& leaf) {
    const DTensor x = Sum(leaf, {0});
    const DTensor y = Where(Greater(x, 0), x * 3, 1 - x);
    const DTensor z = Maximum(y, 1) + Clamp(x, {.min = -0.5, .max = 0.5}) / 4 + Pow(Abs(x) + 1, 1.5);
    return Sum(Sigmoid(z) * Sin(x) - Cos(x) / (2 + Erf(x)) + MaskedFill(x, Less(x, 0.25), 0.0));
  };
  Tensor expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, full, "[-, -, -]").RequiresGrad();
    Backward(loss_of(x));
    expected = x.grad().FullTensor();
  });
  std::vector<double> values = full.ToVector<double>();
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const Layout& layout : AllLayouts(context->mesh(), 3, {})) {
      const DTensor x = Lay(context, full, layout).RequiresGrad();
      Backward(loss_of(x));
      EXPECT_TRUE(AllClose(x.grad().FullTensor(), expected, 1e-12)) << layout;
    }
  });
  // The expectation itself, by central differences of one device.
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    const std::vector<double> gradient = expected.ToVector<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      const auto at = [&](double step) {
        std::vector<double> moved = values;
        moved[i] += step;
        return loss_of(Values(context, {2, 4, 3}, moved)).Item();
      };
      EXPECT_NEAR(gradient[i], (at(1e-6) - at(-1e-6)) / 2e-6, 1e-7) << i;
    }
  });
}

TEST(FunctionsTest, SoftmaxOfAnyDim) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {2, 2}, {0, 1, std::log(3), 1});
    const auto near = [](const DTensor& got, const std::vector<double>& expected) {
      return AllClose(got.FullTensor(), Tensor::FromValues<double>({2, 2}, expected), 1e-15);
    };
    EXPECT_TRUE(near(Softmax(x, 0), {0.25, 0.5, 0.75, 0.5}));
    EXPECT_TRUE(near(LogSoftmax(x, 0), {std::log(0.25), std::log(0.5), std::log(0.75), std::log(0.5)}));
    const double e = std::exp(1);
    EXPECT_TRUE(near(LogSoftmax(x),
                     {-std::log(1 + e), 1 - std::log(1 + e), std::log(3 / (3 + e)), 1 - std::log(3 + e)}));
    EXPECT_TRUE(near(Exp(LogSoftmax(x, 1)), Elements(Softmax(x, -1))));
    EXPECT_THAT(ErrorOf([&] { LogSoftmax(x, 2); }), HasSubstr("LogSoftmax"));
  });
}

TEST(FunctionsTest, MseLossIsTheMeanSquare) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor target = Tensor::FromValues<double>({3, 1}, {1, 2, 3});
    const DTensor x = Lay(context, Tensor::FromValues<double>({3, 1}, {1, 4, 0}), "[a, -]").RequiresGrad();
    const LossSum loss = MseLoss(x, Lay(context, target, "[-, -]"));
    EXPECT_EQ(loss.count.Item(), 3);
    EXPECT_EQ(loss.sum.Item(), 13);
    const DTensor mean = loss.Mean();
    EXPECT_NEAR(mean.Item(), 13.0 / 3, 1e-15);
    Backward(mean);
    EXPECT_TRUE(AllClose(x.grad().FullTensor(), Tensor::FromValues<double>({3, 1}, {0, 4.0 / 3, -2}), 1e-15));
    // 300 ones: a bf16 sum would stop at 256.
    const DTensor zeros = Zeros(context, DType::kBF16, {300});
    EXPECT_EQ(MseLoss(OnesLike(zeros), zeros).sum.Item(), 300);
    EXPECT_EQ(ErrorOf([&] { MseLoss(x, zeros); }),
              "MseLoss: expected a prediction and a target of one floating type, got f64[3, 1] [a, -] and "
              "bf16[300] [-]");
  });
}

TEST(FunctionsTest, CrossEntropyIsMinusTheLogProbability) {
  OnOneDevice([](const IntrusivePtr<MeshContext>& context) {
    const DTensor logits = Values(context, {2, 2}, {0, std::log(3), 5, 5});
    const DTensor targets = Lay(context, Tensor::FromValues<int32_t>({2}, {1, 0}), "[-]");
    const LossSum loss = CrossEntropy(logits, targets);
    EXPECT_NEAR(loss.sum.Item(), std::log(4.0 / 3) + std::log(2), 1e-15);
    EXPECT_EQ(loss.count.Item(), 2);
    EXPECT_NEAR(loss.Mean().Item(), loss.sum.Item() / 2, 1e-15);
    EXPECT_NEAR(CrossEntropy(logits, targets, {.ignore_index = 0}).Mean().Item(), std::log(4.0 / 3), 1e-15);
    // Half of the probability spread over both classes.
    const double smoothed = std::log(4) - 0.75 * std::log(3) + std::log(2);
    EXPECT_NEAR(CrossEntropy(logits, targets, {.label_smoothing = 0.5}).sum.Item(), smoothed, 1e-15);
  });
}

// PyTorch's interpolate(x, scale_factor=(1.2, 2), mode='bilinear') leaves the rows where they are.
TEST(FunctionsTest, LinearInterpolationCopiesWhereTheExtentStays) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, FromDoubles(DType::kF64, {1, 1, 2, 2}, {0, 1, 2, 3}), "[-, -, a, -]");
    const DTensor y = Interpolate(x, {.scale = {1.2, 2}, .mode = ResampleMode::kLinear});
    EXPECT_EQ(LayoutText(y), "[-, -, a, -]");
    EXPECT_EQ(Elements(y), (std::vector<double>{0, 0.25, 0.75, 1, 2, 2.25, 2.75, 3}));
    EXPECT_THAT(ErrorOf([&] {
                  Interpolate(Convert(x, DType::kI32), {.size = {2, 2}, .mode = ResampleMode::kLinear});
                }),
                HasSubstr("resample: expected a floating dtype"));
  });
}

TEST(FunctionsTest, FullOnAnyLayout) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    EXPECT_EQ(Full(context, DType::kI32, {3}, 7).ToLocal().ToVector<int32_t>(),
              (std::vector<int32_t>{7, 7, 7}));
    const DTensor split = Full(context, DType::kF32, {3}, 1.5, Layout::Parse("[a]", context->mesh()));
    EXPECT_EQ(split.ToLocal().num_elements(), context->coordinate()[0] == 0 ? 2 : 1);
    EXPECT_EQ(Sum(split).Item(), 4.5);
  });
}

}  // namespace
}  // namespace weft
