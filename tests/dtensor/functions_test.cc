#include "dtensor/functions.h"

#include <cmath>

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
