#ifndef WEFT_TOOLS_RULES_SAMPLE_TENSORS_H_
#define WEFT_TOOLS_RULES_SAMPLE_TENSORS_H_

#include <random>
#include <vector>

#include "ops/op/op.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// The same sample with every f32 operand in f64, so that rounding hides nothing.
OpSample InF64(const OpSample& sample);

// Uniform in [low, high), rounded down for integers and bool, row-major.
Tensor RandomTensor(const SampleOperand& operand, std::mt19937_64& random);

// One tensor an operand.
std::vector<Tensor> RandomOperands(const OpSample& sample, std::mt19937_64& random);

// Row-major copies: for ops that overwrite operands.
std::vector<Tensor> CopyTensors(const std::vector<Tensor>& tensors);

// The row-major numbers of the elements that share all indices but those of `dims` (bit i is dim i), a list
// for each such set, both in row-major order: what naive loops along dims run over.
std::vector<std::vector<int64_t>> ElementsAlong(const Shape& shape, uint32_t dims);

// "matmul(f64[2, 3], f64[3, 4])": names the call in failures.
std::string CallText(const OpDef& op, const OpSample& sample);

}  // namespace weft

#endif  // WEFT_TOOLS_RULES_SAMPLE_TENSORS_H_
