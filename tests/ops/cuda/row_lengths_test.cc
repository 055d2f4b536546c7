// Kernels on rows, columns and reductions of lengths at which they change their way: a warp, a block or
// several blocks a row, rows in registers or not, whole packs or not. Held to the CPU's kernels.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/normalization/channel_norm.h"
#include "ops/normalization/channel_norm_grad.h"
#include "ops/normalization/cross_entropy.h"
#include "ops/normalization/layer_norm.h"
#include "ops/normalization/layer_norm_grad.h"
#include "ops/normalization/rms_norm.h"
#include "ops/normalization/rms_norm_grad.h"
#include "ops/normalization/softmax.h"
#include "ops/op/kernel.h"
#include "ops/reduce/argmax.h"
#include "ops/reduce/cofactor.h"
#include "ops/reduce/log_sum_exp.h"
#include "ops/reduce/reduce.h"
#include "ops/reduce/row_reductions.h"
#include "ops/reduce/scan.h"
#include "ops/reduce/variance.h"
#include "ops/reduce/vector_norm.h"
#include "runtime/base/error.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "tools/rules/local_kernel.h"
#include "tools/rules/op_case.h"
#include "tools/rules/sample_tensors.h"
#include "tools/rules/tensor_difference.h"

namespace weft {
namespace {

// Rows of f32 are a warp's up to 768, a block's up to 4096; those of bf16 a warp's up to 2048, a block's up to 4097. Longer
// ones are not held. Rows of 768, 2048, 4096 and 8704 are whole packs.
constexpr int64_t kLengths[] = {129, 700, 768, 2048, 4096, 4097, 8704};

class RowLengthsTest : public testing::Test {
 protected:
  // The kernel's outputs on the CPU, from operands on the device of `allocator`.
  std::vector<Tensor> Run(const OpDef& op, const void* attributes, const std::vector<Tensor>& operands,
                          const std::shared_ptr<Allocator>& allocator) {
    KernelContext context = {pool_, allocator};
    std::vector<Piece> pieces;
    TensorTypes types;
    for (const Tensor& operand : operands) {
      pieces.push_back({operand, WholeBox(operand.shape())});
      types.push_back({operand.dtype(), operand.shape()});
    }
    std::vector<ShardBox> boxes;
    for (const TensorType& type : op.Infer(types, attributes)) boxes.push_back(WholeBox(type.shape));
    std::vector<Tensor> outputs;
    for (const Tensor& output : RunKernel(op, context, pieces, boxes, attributes, /*scalars=*/nullptr)) {
      outputs.push_back(OnHost(output));
    }
    return outputs;
  }
  std::vector<Tensor> OnGpu(const std::vector<Tensor>& operands) {
    std::vector<Tensor> copies;
    for (const Tensor& operand : operands) copies.push_back(CloneTensor(operand, cuda_));
    return copies;
  }

  std::vector<Tensor> Draw(const std::vector<SampleOperand>& operands) {
    std::vector<Tensor> tensors;
    for (const SampleOperand& operand : operands) tensors.push_back(RandomTensor(operand, random_));
    return tensors;
  }

  // On random operands, f32 ones in bf16 too. A default attribute struct is what an op without takes.
  void Compare(const OpDef& op, const std::vector<SampleOperand>& operands,
               const void* attributes = &kNoAttributes) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<SampleOperand> typed = operands;
      for (SampleOperand& operand : typed) {
        if (operand.type.dtype == DType::kF32) operand.type.dtype = dtype;
        // Statistics are marked by f64: they are f32 beside either.
        if (operand.type.dtype == DType::kF64) operand.type.dtype = DType::kF32;
      }
      CompareOn(op, Draw(typed), attributes);
    }
  }

  void CompareOn(const OpDef& op, const std::vector<Tensor>& operands, const void* attributes) {
    const std::vector<Tensor> expected = Run(op, attributes, operands, cpu_);
    const std::vector<Tensor> actual = Run(op, attributes, OnGpu(operands), cuda_);
    for (size_t i = 0; i < expected.size(); ++i) {
      double tolerance = Tolerance(expected[i].dtype());
      // bf16 operands: exponentials of halves are quicker.
      if (operands[0].dtype() == DType::kBF16 && expected[i].dtype() == DType::kF32) tolerance = 1e-4;
      EXPECT_EQ(Difference(actual[i], expected[i], {.tolerance = tolerance, .may_cancel = true}), "")
          << op.name() << " of " << operands[0].TypeString() << ", output " << i;
    }
  }

  static constexpr NoAttributes kNoAttributes = {};

  std::mt19937_64 random_{5};
  ThreadPool pool_{1};
  const std::shared_ptr<Allocator> cpu_ = MakeCpuAllocator();
  const std::shared_ptr<Allocator> cuda_ = MakeAllocator({DeviceType::kCuda});
};

SampleOperand F32(const Shape& shape) { return {{DType::kF32, shape}}; }
SampleOperand Statistic(const Shape& shape, double low, double high) {
  return {{DType::kF64, shape}, low, high};
}

TEST_F(RowLengthsTest, Softmax) {
  for (int64_t n : kLengths) {
    const SampleOperand x = F32({3, n});
    for (const OpDef* op : std::vector<const OpDef*>{&kSoftmax, &kLogSoftmax}) Compare(*op, {x});
    // Their sum does not cancel. If it did, its last digits would be the result, and no two orders of adding share them.
    const SampleOperand dy = {x.type, -0.25, 1};
    for (const OpDef* op : std::vector<const OpDef*>{&kSoftmaxGrad, &kLogSoftmaxGrad}) Compare(*op, {x, dy});
  }
}

TEST_F(RowLengthsTest, RowStatistics) {
  for (int64_t n : kLengths) {
    const SampleOperand x = F32({3, n});
    for (const OpDef* op : std::vector<const OpDef*>{&kRowMax, &kRowSum, &kRowMean, &kRowMeanSquare})
      Compare(*op, {x});
    Compare(kRowDot, {x, x});
    Compare(kRowExpSum, {x, Statistic({3}, 0, 2)});
    Compare(kRowVariance, {x, Statistic({3}, -1, 1)});
  }
}

TEST_F(RowLengthsTest, CrossEntropy) {
  const CrossEntropyAttributes plain = {.ignore_index = 1};
  const CrossEntropyAttributes smoothed = {.ignore_index = 1, .label_smoothing = 0.2};
  for (int64_t n : kLengths) {
    const SampleOperand x = F32({3, n});
    // Targets in the first and the last packs.
    for (const SampleOperand& target :
         {SampleOperand{{DType::kI64, {3}}, 0, 3}, SampleOperand{{DType::kI32, {3}}, n - 3.0, n + 0.0}}) {
      for (const CrossEntropyAttributes& a : {plain, smoothed}) {
        Compare(kCrossEntropy, {x, target}, &a);
        Compare(kCrossEntropyGrad, {x, target, Statistic({3}, 5, 8), Statistic({}, 1, 2)}, &a);
        Compare(kCrossEntropyStatistics, {x, target, Statistic({3}, 0, 2)}, &a);
      }
    }
  }
}

// Nobody waits for the device to name it.
TEST_F(RowLengthsTest, TargetOutsideMakesTheLossNan) {
  const CrossEntropyAttributes attributes;
  const Tensor logits = RandomTensor(F32({3, 7}), random_);
  const Tensor targets = Tensor::FromValues<int64_t>({3}, {0, 7, 2});
  const std::vector<Tensor> outputs = Run(kCrossEntropy, &attributes, OnGpu({logits, targets}), cuda_);
  EXPECT_NE(outputs[0].ToVector<float>()[0], outputs[0].ToVector<float>()[0]);
  EXPECT_EQ(outputs[1].ToVector<float>()[0], 3);
}

TEST_F(RowLengthsTest, LayerNorm) {
  const LayerNormAttributes attributes;
  for (int64_t n : kLengths) {
    const SampleOperand x = F32({3, n}), w = F32({n});
    const SampleOperand mean = Statistic({3}, -0.1, 0.1), rstd = Statistic({3}, 0.5, 1);
    Compare(kLayerNorm, {x, w, w}, &attributes);
    Compare(kLayerNormApply, {x, w, w, mean, rstd});
    Compare(kLayerNormGrad, {x, w, mean, rstd, x});
    Compare(kLayerNormWeightGrad, {x, mean, rstd, x});
    Compare(kLayerNormGradMeans, {x, w, mean, rstd, x});
    Compare(kLayerNormGradApply, {x, w, mean, rstd, x, mean, mean});
  }
}

TEST_F(RowLengthsTest, RmsNorm) {
  const RmsNormAttributes attributes;
  for (int64_t n : kLengths) {
    const SampleOperand x = F32({3, n}), w = F32({n}), rstd = Statistic({3}, 0.5, 1);
    Compare(kRmsNorm, {x, w}, &attributes);
    Compare(kRmsNormGrad, {x, w, rstd, x});
    Compare(kRmsNormGradMean, {x, w, rstd, x});
  }
}

// More rows than blocks, so that a block sums several; and columns in more than one block.
TEST_F(RowLengthsTest, WeightGradientsOfManyRows) {
  for (int64_t n : {24, 700}) {
    const SampleOperand x = F32({600, n}), w = F32({n});
    const SampleOperand mean = Statistic({600}, -0.1, 0.1), rstd = Statistic({600}, 0.5, 1);
    Compare(kLayerNormGrad, {x, w, mean, rstd, x});
    Compare(kLayerNormWeightGrad, {x, mean, rstd, x});
    Compare(kRmsNormGrad, {x, w, rstd, x});
  }
}

struct Reduced {
  Shape shape;
  DimMask dims;
};

// Rows and columns, in one part and in several, of whole packs and not, dims on both sides.
const std::vector<Reduced> kReduced = {
    {{40000}, 1},       {{3, 30001}, 2},  {{5000, 40}, 1},    {{5000, 3}, 1},     {{3000, 72}, 1},
    {{400, 600}, 1},    {{40, 9, 72}, 2}, {{2, 64, 128}, 5},  {{4, 5, 6, 7}, 10}, {{300, 3}, 2},
    {{4, 6, 8, 10}, 5}, {{3, 40, 7}, 4},  {{600, 2, 128}, 1}, {{16, 33, 9}, 6},   {{7, 5, 64}, 3},
    {{6, 2, 5000}, 6},  {{1, 33000}, 3},  {{9, 1, 200}, 2},
};

TEST_F(RowLengthsTest, Reductions) {
  for (const Reduced& r : kReduced) {
    const ReduceAttributes attributes = {.dims = r.dims};
    const SampleOperand x = F32(r.shape);
    for (const OpDef* op : std::vector<const OpDef*>{&kSum, &kReduceMax, &kLogSumExp}) {
      Compare(*op, {x}, &attributes);
    }
    const VarianceAttributes variance = {.dims = r.dims};
    Compare(kStd, {x}, &variance);
    for (double p : {3.0, -std::numeric_limits<double>::infinity()}) {
      const NormAttributes norm = {.dims = r.dims, .p = p};
      Compare(kVectorNorm, {x}, &norm);
    }
    Compare(kSum, {{{DType::kI32, r.shape}, -9, 9}}, &attributes);
    Compare(kReduceMax, {{{DType::kBool, r.shape}, 0, 2}}, &attributes);
  }
  const VarianceAttributes rows = {.dims = 2};  // whose squares f32 does not hold
  Compare(kStd, {{{DType::kF32, {33, 40}}, 1e24, 1e25}}, &rows);
}

TEST_F(RowLengthsTest, ReductionsOfViews) {
  const ReduceAttributes attributes = {.dims = 1};
  const Tensor x = RandomTensor(F32({600, 130}), random_);
  const Tensor gpu = CloneTensor(x, cuda_);
  const auto compare = [&](const Tensor& view, const Tensor& gpu_view) {
    const std::vector<Tensor> expected = Run(kSum, &attributes, {view}, cpu_);
    const std::vector<Tensor> actual = Run(kSum, &attributes, {gpu_view}, cuda_);
    EXPECT_EQ(Difference(actual[0], expected[0], {.tolerance = 1e-5}), "");
  };
  compare(x.Transpose(0, 1), gpu.Transpose(0, 1));
  compare(x.Slice(1, 1, 128), gpu.Slice(1, 1, 128));
  compare(x.Slice(1, 4, 64).Transpose(0, 1), gpu.Slice(1, 4, 64).Transpose(0, 1));
  compare(x.Select(0, 3).Expand({600, 130}), gpu.Select(0, 3).Expand({600, 130}));
}

TEST_F(RowLengthsTest, ArgAndIndex) {
  for (const Reduced& r :
       std::vector<Reduced>{{{40000}, 0}, {{5000, 9}, 0}, {{3, 2000}, 1}, {{9, 70, 33}, 1}}) {
    const ArgAttributes attributes = {.dim = static_cast<int>(r.dims)};
    // Few values, so that there are several of the largest.
    const SampleOperand x = {{DType::kI64, r.shape}, 0, 50};
    Compare(kArgMax, {x}, &attributes);
    Compare(kArgMin, {F32(r.shape)}, &attributes);
    Shape kept = r.shape;
    kept.Remove(attributes.dim);
    Compare(kIndexOf, {x, {{DType::kI64, kept}, 0, 50}}, &attributes);
  }
}

TEST_F(RowLengthsTest, Scans) {
  for (bool reverse : {false, true}) {
    for (const Reduced& r : std::vector<Reduced>{
             {{3000}, 0}, {{2500, 3}, 0}, {{20, 4300}, 0}, {{20, 4300}, 1}, {{3, 17, 5}, 1}}) {
      const ScanAttributes attributes = {.dim = static_cast<int>(r.dims), .reverse = reverse};
      Compare(kCumSum, {F32(r.shape)}, &attributes);
      Compare(kCumSum, {{{DType::kI64, r.shape}, -5, 5}}, &attributes);
      Compare(kPieceTotal, {F32(r.shape)}, &attributes);
      CompareOn(kPieceOffsets, Draw({{{DType::kF64, r.shape}}}), &attributes);
      const DimAttributes dim = {.dim = attributes.dim};
      Compare(kCofactor, {{{DType::kF32, r.shape}, 0.999, 1.001}}, &dim);
    }
  }
}

TEST_F(RowLengthsTest, ChannelNorm) {
  for (int64_t groups : {0, 2}) {
    const ChannelNormAttributes attributes = {.groups = groups};
    for (const Shape& shape : {Shape{3, 4, 5001}, Shape{70, 6}, Shape{5, 40, 3, 8}}) {
      const Shape statistic = groups == 0 ? Shape{shape[1]} : Shape{shape[0], groups};
      const SampleOperand x = F32(shape), w = F32({shape[1]});
      const SampleOperand mean = Statistic(statistic, -0.1, 0.1), variance = Statistic(statistic, 0.5, 1);
      Compare(kChannelNorm, {x, w, w}, &attributes);
      Compare(kChannelNormGrad, {x, w, mean, variance, x}, &attributes);
    }
  }
}

// A row's bits do not depend on where it lies.
TEST_F(RowLengthsTest, UnalignedRowsGiveTheSameBits) {
  const LayerNormAttributes norm;
  for (int64_t n : {130, 1001, 9000}) {
    const Tensor gpu = CloneTensor(RandomTensor(F32({4, n + 5}), random_), cuda_);
    const Tensor view = gpu.Slice(1, 3, n);
    const Tensor w = CloneTensor(RandomTensor(F32({n}), random_), cuda_);
    const auto expect_same = [&](const OpDef& op, const void* attributes, const std::vector<Tensor>& rest) {
      std::vector<Tensor> a = {view}, b = {CloneTensor(view, cuda_)};
      a.insert(a.end(), rest.begin(), rest.end());
      b.insert(b.end(), rest.begin(), rest.end());
      const std::vector<Tensor> of_a = Run(op, attributes, a, cuda_), of_b = Run(op, attributes, b, cuda_);
      for (size_t i = 0; i < of_a.size(); ++i) {
        EXPECT_EQ(std::memcmp(of_a[i].data(), of_b[i].data(), of_a[i].num_bytes()), 0)
            << op.name() << " " << n;
      }
    };
    expect_same(kSoftmax, &kNoAttributes, {});
    expect_same(kRowSum, &kNoAttributes, {});
    expect_same(kLayerNorm, &norm, {w, w});
  }
}

// inf, -inf, nan and -0 in an operand: what one of the CPU's kernels makes of them.
TEST_F(RowLengthsTest, SpecialValues) {
  const std::vector<const OpDef*> ops = {&kSoftmax,
                                         &kLogSoftmax,
                                         &kSoftmaxApply,
                                         &kRowMax,
                                         &kRowSum,
                                         &kRowExpSum,
                                         &kCrossEntropy,
                                         &kLogSumExp,
                                         &kLogSumExpGrad,
                                         &kReduceMax,
                                         &kReduceMin,
                                         &kSum,
                                         &kExpSum,
                                         &kArgMax,
                                         &kArgMin,
                                         &kVectorNorm,
                                         &kExtremumMask,
                                         &kVectorNormGrad,
                                         &kCumSum,
                                         &kCofactor,
                                         &kLogSumExpFinish,
                                         &kProd,
                                         &kCrossEntropyStatistics};
  for (const OpDef* op : ops) {
    for (const OpCase& op_case : OpCases(*op, /*exhaustive=*/false)) {
      std::vector<CaseValues> draws;
      try {
        draws = ValuesOf(op_case, /*seed=*/3);
      } catch (const Error&) {
        continue;  // no target is among no classes
      }
      for (const CaseValues& values : draws) {
        const std::vector<Tensor> actual =
            Run(*op, op_case.sample.attributes.get(), OnGpu(values.operands), cuda_);
        for (size_t i = 0; i < actual.size(); ++i) {
          EXPECT_EQ(Difference(actual[i], values.outputs[i], {.tolerance = 1e-10}), "")
              << op_case.ToString() << ", " << values.name << ", output " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
