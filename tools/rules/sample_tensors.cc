#include "tools/rules/sample_tensors.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/tensor/copy.h"

namespace weft {

OpSample InF64(const OpSample& sample) {
  OpSample result = sample;
  for (SampleOperand& operand : result.operands) {
    if (operand.type.dtype == DType::kF32) operand.type.dtype = DType::kF64;
  }
  return result;
}

Tensor RandomTensor(const SampleOperand& operand, std::mt19937_64& random) {
  std::vector<double> values(operand.type.shape.num_elements());
  for (double& value : values) {
    const double unit = static_cast<double>(random() >> 11) * 0x1p-53;
    value = operand.low + (operand.high - operand.low) * unit;
    if (!IsFloating(operand.type.dtype)) value = std::floor(value);
  }
  const Tensor tensor = Tensor::FromValues<double>(operand.type.shape, values);
  return operand.type.dtype == DType::kF64 ? tensor
                                           : CastTensor(tensor, operand.type.dtype, MakeCpuAllocator());
}

std::vector<Tensor> RandomOperands(const OpSample& sample, std::mt19937_64& random) {
  std::vector<Tensor> tensors;
  for (const SampleOperand& operand : sample.operands) tensors.push_back(RandomTensor(operand, random));
  return tensors;
}

std::vector<Tensor> CopyTensors(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& tensor : tensors) copies.push_back(CloneTensor(tensor, MakeCpuAllocator()));
  return copies;
}

std::vector<std::vector<int64_t>> ElementsAlong(const Shape& shape, uint32_t dims) {
  int64_t count = 1;
  for (int dim = 0; dim < shape.ndim(); ++dim) count *= (dims >> dim & 1) != 0 ? 1 : shape[dim];
  std::vector<std::vector<int64_t>> elements(count);
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    int64_t rest = i;
    int64_t group = 0;
    int64_t stride = 1;
    for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
      if ((dims >> dim & 1) == 0) {
        group += rest % shape[dim] * stride;
        stride *= shape[dim];
      }
      rest /= shape[dim];
    }
    elements[group].push_back(i);
  }
  return elements;
}

std::string CallText(const OpDef& op, const OpSample& sample) {
  std::string text = absl::StrCat(op.name(), "(");
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    absl::StrAppend(&text, i > 0 ? ", " : "", sample.operands[i].type.ToString());
  }
  return absl::StrCat(text, ")");
}

}  // namespace weft
