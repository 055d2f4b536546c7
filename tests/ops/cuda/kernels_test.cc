// Every CUDA kernel, emulated, beside the CPU's kernel of the same op: on the op's samples, in every floating
// dtype that it takes, on the extents that follow from them, and on operands that are not contiguous.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/op/kernel.h"
#include "runtime/base/error.h"
#include "runtime/device/device_backend.h"
#include "runtime/tensor/copy.h"
#include "tools/rules/local_kernel.h"
#include "tools/rules/op_case.h"
#include "tools/rules/sample_tensors.h"
#include "tools/rules/tensor_difference.h"

namespace weft {
namespace {

std::vector<const OpDef*> CudaOps() {
  std::vector<const OpDef*> ops;
  for (const OpDef* op : RegisteredOps()) {
    if (!op->is_view() && FindKernel(*op, DeviceType::kCuda) != nullptr) ops.push_back(op);
  }
  return ops;
}

// The sample with f32 operands in `dtype`; attributes that name a dtype (a cast's) stay.
OpSample InDType(const OpSample& sample, DType dtype) {
  OpSample result = sample;
  for (SampleOperand& operand : result.operands) {
    if (operand.type.dtype == DType::kF32) operand.type.dtype = dtype;
  }
  return result;
}

// The same elements with the first two dims of at least 2 swapped in memory, and a gap after each run.
Tensor Scattered(const Tensor& tensor, const std::shared_ptr<Allocator>& allocator) {
  if (tensor.ndim() < 2) return CloneTensor(tensor, allocator);
  Shape shape = tensor.shape();
  std::swap(shape[0], shape[1]);
  ++shape[tensor.ndim() - 1];
  Tensor view = Tensor::Empty(allocator, tensor.dtype(), shape);
  FillTensor(view, 0);
  view = view.Slice(tensor.ndim() - 1, 0, shape[tensor.ndim() - 1] - 1).Transpose(0, 1);
  CopyTensor(tensor, view);
  return view;
}

class CudaKernelsTest : public testing::TestWithParam<const OpDef*> {
 protected:
  // What the kernel on that allocator's device makes of the operands, on the CPU.
  std::vector<Tensor> Outputs(const OpDef& op, const OpSample& sample, const std::vector<Tensor>& operands,
                              const std::shared_ptr<Allocator>& allocator, bool scattered) {
    KernelContext context = {pool_, allocator};
    std::vector<Piece> pieces;
    for (const Tensor& operand : operands) {
      const bool in_place = op.in_place()[0] != '\0';
      const Tensor own =
          scattered && !in_place ? Scattered(operand, allocator) : CloneTensor(operand, allocator);
      pieces.push_back({own, WholeBox(operand.shape())});
    }
    TensorTypes types;
    for (const Piece& piece : pieces) types.push_back({piece.tensor.dtype(), piece.tensor.shape()});
    std::vector<ShardBox> boxes;
    for (const TensorType& type : op.Infer(types, sample.attributes.get()))
      boxes.push_back(WholeBox(type.shape));
    std::vector<Tensor> outputs;
    for (const Tensor& output :
         RunKernel(op, context, pieces, boxes, sample.attributes.get(), sample.scalars.get())) {
      outputs.push_back(OnHost(output));
    }
    return outputs;
  }

  void Compare(const OpDef& op, const OpSample& sample, bool scattered) {
    std::mt19937_64 random(17);
    const std::vector<Tensor> operands = RandomOperands(sample, random);
    std::vector<Tensor> expected;
    try {
      expected = Outputs(op, sample, operands, cpu_, scattered);
    } catch (const Error&) {
      return;  // it does not take these
    }
    ++num_compared_;
    const std::vector<Tensor> actual = Outputs(op, sample, operands, cuda_, scattered);
    DType coarsest = DType::kF64;
    for (const Tensor& tensor : operands) {
      if (Tolerance(tensor.dtype()) > Tolerance(coarsest)) coarsest = tensor.dtype();
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      const double tolerance = std::max(Tolerance(expected[i].dtype()),
                                        IsFloating(expected[i].dtype()) ? Tolerance(coarsest) : 0.0);
      EXPECT_EQ(Difference(actual[i], expected[i], {.tolerance = tolerance}), "")
          << CallText(op, sample) << ", output " << i << (scattered ? ", scattered" : "");
    }
  }

  ThreadPool pool_{1};
  const std::shared_ptr<Allocator> cpu_ = MakeCpuAllocator();
  const std::shared_ptr<Allocator> cuda_ = MakeAllocator({DeviceType::kCuda});
  int num_compared_ = 0;
};

TEST_P(CudaKernelsTest, AgreesWithTheCpu) {
  const OpDef& op = *GetParam();
  for (const OpSample& sample : op.Samples()) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      for (bool scattered : {false, true}) Compare(op, InDType(sample, dtype), scattered);
    }
  }
  for (const OpCase& op_case : OpCases(op, /*exhaustive=*/false)) {
    if (op_case.varied) Compare(op, op_case.sample, /*scattered=*/false);
  }
  EXPECT_GT(num_compared_, 0) << op.name();
}

std::string NameOf(const testing::TestParamInfo<const OpDef*>& info) {
  return absl::StrCat(info.param->name(), "_", info.index);
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaKernelsTest, testing::ValuesIn(CudaOps()), NameOf);

// What has a CPU kernel and no CUDA kernel: to be empty.
TEST(CudaKernels, Missing) {
  std::vector<std::string> missing;
  for (const OpDef* op : RegisteredOps()) {
    if (!op->is_view() && FindKernel(*op, DeviceType::kCuda) == nullptr) missing.push_back(op->name());
  }
  EXPECT_THAT(missing, testing::IsEmpty());
}

}  // namespace
}  // namespace weft
