// Gradients of attention on GPUs whose blocks have 99 KiB of shared memory (compute capability 8.6, 8.9 and 12.0), emulated:
// by smaller tiles, beside the CPU's kernels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/attention/masked_attention.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/message_of.h"
#include "tests/ops/cuda/both_devices.h"
#include "tools/rules/sample_tensors.h"
#include "tools/rules/tensor_difference.h"

namespace weft {
namespace {

constexpr int64_t kQueries = 70;  // several tiles, and a part of one
constexpr int64_t kKeys = 130;

class SmallSharedMemoryTest : public testing::Test {
 protected:
  SmallSharedMemoryTest() { cuda_emulator::SetMachine({.shared_bytes = 99 << 10}); }
  ~SmallSharedMemoryTest() override { cuda_emulator::SetMachine({}); }

  template <class R>
  BothDevices::Results Run(const Op<AttentionAttributes, R>& op, const std::vector<Tensor>& operands,
                           const R& scalars) {
    const AttentionAttributes attributes = {.causal = true};
    TensorTypes types;
    for (const Tensor& operand : operands) types.push_back({operand.dtype(), operand.shape()});
    std::vector<ShardBox> boxes;
    for (const TensorType& type : op.Infer(types, &attributes)) boxes.push_back(WholeBox(type.shape));
    const auto make_operands = [&](const std::shared_ptr<Allocator>& allocator) {
      std::vector<Piece> pieces;
      for (const Tensor& operand : operands) {
        pieces.push_back({CloneTensor(operand, allocator), WholeBox(operand.shape())});
      }
      return pieces;
    };
    return devices_.Run(op, make_operands, boxes, &attributes, &scalars);
  }

  Tensor Random(DType dtype, const Shape& shape) { return RandomTensor({{dtype, shape}, -2, 2}, random_); }
  // q, k and v of one head of `e` elements.
  std::vector<Tensor> Heads(DType dtype, int64_t e) {
    return {Random(dtype, {1, kQueries, 1, e}), Random(dtype, {1, kKeys, 1, e}),
            Random(dtype, {1, kKeys, 1, e})};
  }

  // Runs `op` and then its gradients on the operands, the results and a gradient of the first.
  template <class R>
  void ExpectSameGradients(const Op<AttentionAttributes, R>& op,
                           const std::vector<const Op<AttentionAttributes, R>*>& gradients,
                           std::vector<Tensor> operands, const R& scalars) {
    for (const Tensor& result : Run(op, operands, scalars).cpu) operands.push_back(result);
    operands.push_back(Random(operands[0].dtype(), operands[0].shape()));
    const double tolerance = operands[0].dtype() == DType::kF64 ? 1e-12 : 5e-5;
    for (const Op<AttentionAttributes, R>* gradient : gradients) {
      const BothDevices::Results results = Run(*gradient, operands, scalars);
      for (size_t i = 0; i < results.cpu.size(); ++i) {
        EXPECT_EQ(Difference(results.cuda[i], results.cpu[i], {.tolerance = tolerance}), "")
            << gradient->name() << ", gradient " << i << " of q " << operands[0].TypeString();
      }
    }
  }

  BothDevices devices_;
  std::mt19937_64 random_{7};
};

// Of f32 the heads of at most 64 elements have their usual tiles, of f64 the smaller ones have 128 elements.
TEST_F(SmallSharedMemoryTest, GradientsOfAttentionFit) {
  for (const int64_t e : {40, 80, 200}) {
    ExpectSameGradients(kAttention, {&kAttentionGrad}, Heads(DType::kF32, e), NoScalars());
  }
  ExpectSameGradients(kAttention, {&kAttentionGrad}, Heads(DType::kF64, 80), NoScalars());
}

// A whole mask, and one that repeats along queries.
TEST_F(SmallSharedMemoryTest, GradientsOfMasksFit) {
  for (const int64_t rows : {kQueries, int64_t{1}}) {
    std::vector<Tensor> operands = Heads(DType::kF32, 80);
    operands.push_back(Random(DType::kF32, {1, 1, rows, kKeys}));
    ExpectSameGradients(kMaskedAttention, {&kMaskedAttentionGrad, &kMaskedAttentionMaskGrad}, operands,
                        DropoutScalars());
  }
}

TEST_F(SmallSharedMemoryTest, WhatDoesNotFitSaysWhatItNeeds) {
  std::vector<Tensor> operands = Heads(DType::kF64, 130);
  for (const Tensor& result : Run(kAttention, operands, NoScalars()).cpu) operands.push_back(result);
  operands.push_back(Random(DType::kF64, operands[0].shape()));
  EXPECT_THAT(MessageOf([&] { Run(kAttentionGrad, operands, NoScalars()); }),
              testing::HasSubstr("a block of this kernel needs 134400 bytes of shared memory, this GPU gives "
                                 "at most 101376"));
}

}  // namespace
}  // namespace weft
