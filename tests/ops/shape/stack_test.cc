#include "ops/shape/stack.h"

#include <numeric>
#include <string>

#include "gtest/gtest.h"
#include "tests/ops/single_device.h"

namespace weft {
namespace {

Tensor Iota(const Shape& shape, float start = 0) {
  std::vector<float> values(shape.num_elements());
  std::iota(values.begin(), values.end(), start);
  return Tensor::FromValues<float>(shape, values);
}

TEST(StackTest, MakesADim) {
  const Tensor a = Iota({2, 2}).Transpose(0, 1);  // 0 2, 1 3
  const Tensor b = Iota({2, 2}, 4);               // 4 5, 6 7
  EXPECT_EQ(RunOp(kStack, {a, b}, {.dim = 0}).ToVector<float>(),
            (std::vector<float>{0, 2, 1, 3, 4, 5, 6, 7}));
  EXPECT_EQ(RunOp(kStack, {a, b}, {.dim = 1}).ToVector<float>(),
            (std::vector<float>{0, 2, 4, 5, 1, 3, 6, 7}));
  EXPECT_EQ(RunOp(kStack, {a, b}, {.dim = 2}).ToVector<float>(),
            (std::vector<float>{0, 4, 2, 5, 1, 6, 3, 7}));
  EXPECT_EQ(RunOp(kStack, {Iota({0, 2})}, {.dim = 1}).shape(), (Shape{0, 1, 2}));
}

TEST(StackTest, ZerosWhereNoOperandStands) {
  const StackAttributes attributes = {.dim = 0, .extent = 4, .positions = {1, 3}};
  EXPECT_EQ(RunOp(kStack, {Iota({1}, 5), Iota({1}, 6)}, attributes).ToVector<float>(),
            (std::vector<float>{0, 5, 0, 6}));
}

TEST(UnbindTest, GivesViews) {
  const Tensor x = Iota({2, 3, 2});
  const std::vector<Tensor> y = RunAll(kUnbind, {x}, {.dim = 1});
  ASSERT_EQ(y.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(y[i].data<float>(), x.data<float>() + 2 * i);
    EXPECT_EQ(y[i].ToVector<float>(), x.Select(1, i).ToVector<float>());
  }
}

// Outputs that nothing depends on have gradient 0.
TEST(UnbindTest, MissingGradientsAreZero) {
  const Tensor x = Iota({3, 2});
  const Tensor dy = Iota({2}, 1);
  EXPECT_EQ(Backward(kUnbind, {x}, {Tensor(), dy, Tensor()}, {.dim = 0})[0].ToVector<float>(),
            (std::vector<float>{0, 0, 1, 2, 0, 0}));
  EXPECT_FALSE(Backward(kUnbind, {x}, {Tensor(), Tensor(), Tensor()}, {.dim = 0})[0].defined());
}

template <class A>
std::string InferError(const Op<A>& op, const TensorTypes& operands, const A& a) {
  try {
    op.Infer(operands, &a);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(StackTest, Errors) {
  const TensorType pair = {DType::kF32, {2}};
  EXPECT_EQ(InferError(kStack, {}, {}), "stack: expected at least one operand");
  EXPECT_EQ(InferError(kStack, {pair}, {.dim = 2}), "stack: cannot make a dim 2 for f32[2]");
  EXPECT_EQ(InferError(kStack, {pair, {DType::kF32, {3}}}, {}),
            "stack: operands must be of one type; operand 0 is f32[2], operand 1 is f32[3]");
  EXPECT_EQ(InferError(kStack, {pair, pair}, {.dim = 0, .extent = 4, .positions = {2, 4}}),
            "stack: expected 2 increasing positions below 4, got {2, 4}");
  EXPECT_EQ(InferError(kUnbind, {pair}, {.dim = 1}), "unbind: there is no dim 1 in f32[2]");
  EXPECT_EQ(InferError(kUnbind, {{DType::kF32, {0, 2}}}, {.dim = 0}),
            "unbind: dim 0 of f32[0, 2] is empty: there would be no outputs");
}

}  // namespace
}  // namespace weft
