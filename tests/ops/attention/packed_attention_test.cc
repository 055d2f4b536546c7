#include "ops/attention/packed_attention.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/shape/stack.h"
#include "runtime/base/error.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

// It is attention of its parts, bit by bit, its gradient theirs side by side; heads of odd width, several
// blocks of queries, and none at all.
TEST(PackedAttentionTest, IsAttentionOfItsParts) {
  std::mt19937_64 random(5);
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape& shape : {Shape{2, 70, 3, 3, 16}, Shape{1, 130, 3, 2, 5}, Shape{2, 0, 3, 2, 4}}) {
      for (bool causal : {true, false}) {
        const AttentionAttributes attributes = {.causal = causal};
        const Tensor qkv = RandomTensor({{dtype, shape}, -2, 2}, random);
        const std::vector<Tensor> parts = {qkv.Select(2, 0), qkv.Select(2, 1), qkv.Select(2, 2)};
        const std::vector<Tensor> expected = RunAll(kAttention, parts, attributes);
        const std::vector<Tensor> packed = RunAll(kPackedAttention, {qkv}, attributes, {}, /*num_threads=*/2);
        EXPECT_TRUE(SameBits(packed[0], expected[0])) << qkv.TypeString();
        EXPECT_TRUE(SameBits(packed[1], expected[1])) << qkv.TypeString();
        const Tensor dy = RandomTensor({{dtype, expected[0].shape()}}, random);
        std::vector<Tensor> operands = parts;
        for (const Tensor& more : {expected[0], expected[1], dy}) operands.push_back(more);
        const std::vector<Tensor> grads = RunAll(kAttentionGrad, operands, attributes);
        const Tensor grad = RunOp(kPackedAttentionGrad, {qkv, expected[0], expected[1], dy}, attributes, {},
                                  /*num_threads=*/2);
        EXPECT_TRUE(SameBits(grad, RunOp(kStack, grads, {.dim = 2}))) << qkv.TypeString();
      }
    }
  }
}

TEST(PackedAttentionTest, Errors) {
  const AttentionAttributes attributes;
  const auto message = [&](const OpDef& op, const std::vector<TensorType>& operands) {
    try {
      op.Infer(operands, &attributes);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no error");
  };
  const TensorType qkv = {DType::kF32, {2, 5, 3, 4, 8}}, y = {DType::kF32, {2, 5, 4, 8}};
  EXPECT_EQ(message(kPackedAttention, {{DType::kF32, {2, 5, 4, 8}}}),
            "packed_attention: expected qkv [b, s, 3, h, e], floating; got f32[2, 5, 4, 8]");
  EXPECT_EQ(message(kPackedAttention, {{DType::kI32, {2, 5, 3, 4, 8}}}),
            "packed_attention: expected qkv [b, s, 3, h, e], floating; got i32[2, 5, 3, 4, 8]");
  EXPECT_EQ(message(kPackedAttention, {{DType::kF32, {2, 5, 3, 4, 0}}}),
            "packed_attention: heads must have elements, got qkv f32[2, 5, 3, 4, 0]");
  EXPECT_EQ(
      message(kPackedAttentionGrad, {qkv, y, {DType::kF32, {2, 4, 6}}, y}),
      "packed_attention_grad: expected y and dy f32[2, 5, 4, 8], lse f32[2, 4, 5]; got y f32[2, 5, 4, 8], "
      "lse f32[2, 4, 6], dy f32[2, 5, 4, 8]");
}

}  // namespace
}  // namespace weft
