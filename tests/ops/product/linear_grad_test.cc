// The ops that a linear layer's backward is made of, and the one with an activation in it: each beside the
// ops that it stands for.

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/elementwise/elementwise.h"
#include "ops/product/contract.h"
#include "ops/reduce/reduce.h"
#include "runtime/base/error.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

struct Case {
  ContractAttributes labels;  // of the layer
  Shape x, w, b;

  ContractAttributes weight_grad() const { return {.x = labels.x, .w = labels.y, .y = labels.w}; }
  ContractAttributes input_grad() const { return {.x = labels.y, .w = labels.w, .y = labels.x}; }
};

// Small ones, such as packed products take, weights of several dims, a bias of the last of them, a weight
// that is transposed, a batch of weights, and nothing at all to sum.
std::vector<Case> Cases() {
  return {{{"mk", "kn", "mn"}, {3, 4}, {4, 5}, {5}},
          {{"mk", "kn", "mn"}, {0, 4}, {4, 5}, {5}},
          {{"mk", "kn", "mn"}, {131, 203}, {203, 97}, {97}},
          {{"bsd", "dthe", "bsthe"}, {2, 70, 60}, {60, 3, 2, 17}, {3, 2, 17}},
          {{"bsd", "dthe", "bsthe"}, {2, 7, 10}, {10, 3, 4, 16}, {4, 16}},
          {{"bshe", "hed", "bsd"}, {2, 50, 4, 16}, {4, 16, 33}, {33}},
          {{"bsd", "vd", "bsv"}, {3, 40, 64}, {29, 64}, {29}},
          {{"bmk", "bkn", "bmn"}, {3, 6, 8}, {3, 8, 9}, {9}}};
}

Shape ResultShape(const Case& c) {
  const std::vector<TensorType> operands = {{DType::kF64, c.x}, {DType::kF64, c.w}};
  return kContract.Infer(operands, &c.labels)[0].shape;
}

class LinearGradTest : public testing::TestWithParam<DType> {
 protected:
  static Tensor Values(const Shape& shape, unsigned seed) {
    std::mt19937_64 random(seed);
    return RandomTensor({{GetParam(), shape}}, random);
  }
};

TEST_P(LinearGradTest, WeightAndBiasGradientsAreAProductAndASum) {
  for (const Case& c : Cases()) {
    const Tensor x = Values(c.x, 1);
    const Tensor dy = Values(ResultShape(c), 2);
    const std::vector<Tensor> both = RunAll(kLinearWeightGrad, {x, dy}, {c.weight_grad(), c.b.ndim()});
    EXPECT_TRUE(SameBits(both[0], RunOp(kContract, {x, dy}, c.weight_grad()))) << c.w.ToString();
    EXPECT_TRUE(SameBits(both[1], RunOp(kSumTo, {dy}, {.shape = c.b}))) << c.b.ToString();
  }
}

TEST_P(LinearGradTest, ALayerAfterGeluIsTheTwo) {
  for (const Case& c : Cases()) {
    const Tensor h = Values(c.x, 3), w = Values(c.w, 4), b = Values(c.b, 5);
    const std::vector<Tensor> both = RunAll(kGeluLinear, {h, w, b}, c.labels);
    const Tensor a = RunOp(kGelu, {h});
    EXPECT_TRUE(SameBits(both[1], a)) << c.x.ToString();
    EXPECT_TRUE(SameBits(both[0], RunOp(kLinear, {a, w, b}, c.labels))) << c.x.ToString();
  }
}

TEST_P(LinearGradTest, TheGradientThroughGeluIsAProductTimesItsDerivative) {
  for (const Case& c : Cases()) {
    const Tensor h = Values(c.x, 6), w = Values(c.w, 7), dy = Values(ResultShape(c), 8);
    const Tensor dh = RunOp(kGeluLinearInputGrad, {dy, w, h}, c.input_grad());
    const Tensor da = RunOp(kContract, {dy, w}, c.input_grad());
    EXPECT_TRUE(SameBits(dh, RunOp(kGeluGrad, {h, da}))) << c.x.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, LinearGradTest,
                         testing::Values(DType::kF64, DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

template <class A>
std::string InferError(const Op<A>& op, const std::vector<TensorType>& operands, const A& attributes) {
  try {
    op.Infer(operands, &attributes);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(LinearGradErrorsTest, NameTheOpAndItsOperands) {
  const TensorType x = {DType::kF32, {2, 5}}, w = {DType::kF32, {5, 3}}, y = {DType::kF32, {2, 3}};
  const ContractAttributes labels = {"bd", "dv", "bv"};
  EXPECT_EQ(InferError(kLinearWeightGrad, {x, {DType::kF32, {4, 3}}}, {{"bd", "bv", "dv"}, 1}),
            "linear_weight_grad: dim 'b' is 2 in x f32[2, 5] (\"bd\") and 4 in dy f32[4, 3] (\"bv\")");
  EXPECT_EQ(InferError(kLinearWeightGrad, {x, y}, {{"bd", "bv", "dv"}, 2}),
            "linear_weight_grad: dim 'b' of the bias f32[2, 3] is none of dy's own: x is \"bd\", dw \"dv\"");
  EXPECT_EQ(InferError(kLinearWeightGrad, {x, y}, {{"bd", "bv", "dv"}, 3}),
            "linear_weight_grad: expected a bias of at most the dims of dy f32[2, 3], got one of 3");
  EXPECT_EQ(
      InferError(kLinearWeightGrad, {x, y}, {{"bd", "bv", "d"}, 1}),
      "linear_weight_grad: dim 'v' is in dy \"bv\" alone, neither in the other operand \"bd\" nor in dw "
      "\"d\": sum it away first, or name it in dw");
  EXPECT_EQ(InferError(kGeluLinear, {x, w, {DType::kF32, {2}}}, labels),
            "gelu_linear: expected a bias of the last dims of f32[2, 3], got f32[2]");
  EXPECT_EQ(InferError(kGeluLinear, {{DType::kI32, {2, 5}}, w, {DType::kF32, {3}}}, labels),
            "gelu_linear: expected floating operands, got h i32[2, 5]");
  EXPECT_EQ(InferError(kGeluLinearInputGrad, {y, w, {DType::kBF16, {2, 5}}}, {"bv", "dv", "bd"}),
            "gelu_linear_input_grad: expected h of the product's type f32[2, 5], got bf16[2, 5]");
}

}  // namespace
}  // namespace weft
