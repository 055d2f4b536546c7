#include "ops/shape/concat.h"

#include <numeric>
#include <string>

#include "gtest/gtest.h"
#include "tests/ops/single_device.h"

namespace weft {
namespace {

Tensor Iota(const Shape& shape, float start) {
  std::vector<float> values(shape.num_elements());
  std::iota(values.begin(), values.end(), start);
  return Tensor::FromValues<float>(shape, values);
}

TEST(ConcatTest, JoinsStridedAndEmptyOperands) {
  const Tensor a = Iota({2, 2}, 1).Transpose(0, 1);
  const Tensor b = Iota({2, 0}, 0);
  const Tensor c = Iota({2, 1}, 7);
  EXPECT_EQ(RunOp(kConcat, {a, b, c}, {.dim = 1}).ToVector<float>(), (std::vector<float>{1, 3, 7, 2, 4, 8}));
  EXPECT_EQ(RunOp(kConcat, {c, c}, {.dim = 0}).ToVector<float>(), (std::vector<float>{7, 8, 7, 8}));
}

TEST(ConcatTest, OnlyWantedGradientsAreDelivered) {
  const std::vector<Tensor> operands = {Iota({1, 2}, 0), Iota({3, 2}, 0)};
  const ConcatAttributes attributes = {.dim = 0};
  const std::vector<Tensor> gradients =
      RunBackwardErased(kConcat, operands, {Iota({4, 2}, 0)}, &attributes, nullptr, {false, true});
  EXPECT_FALSE(gradients[0].defined());
  EXPECT_EQ(gradients[1].ToVector<float>(), (std::vector<float>{2, 3, 4, 5, 6, 7}));
}

std::string InferError(const TensorTypes& operands, const ConcatAttributes& a) {
  try {
    kConcat.Infer(operands, &a);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(ConcatTest, Errors) {
  EXPECT_EQ(InferError({}, {}), "concat: expected at least one operand");
  EXPECT_EQ(InferError({{DType::kF32, {2}}}, {.dim = 1}), "concat: there is no dim 1 in f32[2]");
  EXPECT_EQ(InferError({{DType::kF32, {2, 3}}, {DType::kF32, {2, 4}}}, {.dim = 0}),
            "concat: operands may differ only in dim 0; operand 0 is f32[2, 3], operand 1 is f32[2, 4]");
  EXPECT_EQ(InferError({{DType::kF32, {2}}, {DType::kF64, {2}}}, {.dim = 0}),
            "concat: operands may differ only in dim 0; operand 0 is f32[2], operand 1 is f64[2]");
}

}  // namespace
}  // namespace weft
