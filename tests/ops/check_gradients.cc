#include "tests/ops/check_gradients.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/single_device.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

TensorTypes OutputTypes(const OpDef& op, const OpSample& sample) {
  TensorTypes types;
  for (const SampleOperand& operand : sample.operands) types.push_back(operand.type);
  return op.Infer(types, sample.attributes.get());
}

// sum over outputs that have weights of weights * elements.
double Objective(const OpDef& op, const OpSample& sample, const std::vector<Tensor>& operands,
                 const std::vector<Tensor>& weights) {
  const std::vector<Tensor> outputs = RunErased(op, operands, sample.attributes.get(), sample.scalars.get());
  double sum = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!weights[i].defined()) continue;
    const std::vector<double> w = weights[i].ToVector<double>();
    const std::vector<double> y = outputs[i].ToVector<double>();
    for (size_t j = 0; j < y.size(); ++j) sum += w[j] * y[j];
  }
  return sum;
}

// d Objective / d operand, by central differences.
std::vector<double> Differences(const OpDef& op, const OpSample& sample, const std::vector<Tensor>& operands,
                                size_t operand, const std::vector<Tensor>& weights, double step) {
  std::vector<Tensor> moved = operands;
  moved[operand] = CloneTensor(operands[operand], MakeCpuAllocator());
  double* elements = moved[operand].data<double>();
  std::vector<double> gradient(moved[operand].num_elements());
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double at = elements[i];
    elements[i] = at + step;
    const double above = Objective(op, sample, moved, weights);
    elements[i] = at - step;
    const double below = Objective(op, sample, moved, weights);
    elements[i] = at;
    gradient[i] = (above - below) / (2 * step);
  }
  return gradient;
}

::testing::AssertionResult Compare(const OpDef& op, size_t operand, const Tensor& gradient,
                                   const std::vector<double>& expected, double tolerance) {
  // No gradient means that it is zero.
  const std::vector<double> got =
      gradient.defined() ? gradient.ToVector<double>() : std::vector<double>(expected.size(), 0.0);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(got[i] - expected[i]);
    if (error <= tolerance * std::max(1.0, std::abs(expected[i]))) continue;
    return ::testing::AssertionFailure()
           << op.name() << ": gradient of operand " << operand << " at row-major index " << i << ": got "
           << got[i] << (gradient.defined() ? "" : " (none delivered)") << ", central differences give "
           << expected[i];
  }
  return ::testing::AssertionSuccess();
}

// One set of weights: all operands' gradients at once, then each wanted alone.
::testing::AssertionResult CheckWeights(const OpDef& op, const OpSample& sample,
                                        const std::vector<Tensor>& operands,
                                        const std::vector<Tensor>& weights, double step,
                                        const GradientCheck& check) {
  const void* attributes = sample.attributes.get();
  const void* scalars = sample.scalars.get();
  const std::vector<Tensor> all = RunBackwardErased(op, operands, weights, attributes, scalars);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].dtype() != DType::kF64) continue;
    const std::vector<double> expected = Differences(op, sample, operands, i, weights, step);
    ::testing::AssertionResult result = Compare(op, i, all[i], expected, check.tolerance);
    if (!result) return result;
    std::vector<bool> wanted(operands.size(), false);
    wanted[i] = true;
    const std::vector<Tensor> alone = RunBackwardErased(op, operands, weights, attributes, scalars, wanted);
    result = Compare(op, i, alone[i], expected, check.tolerance);
    if (!result) return result << " (wanted alone)";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace

bool CanCheckGradients(const OpDef& op, const OpSample& sample) {
  const auto floating = [](const TensorType& type) { return IsFloating(type.dtype); };
  const auto short_float = [](const TensorType& type) {
    return type.dtype == DType::kBF16 || type.dtype == DType::kF16;
  };
  const TensorTypes outputs = OutputTypes(op, InF64(sample));
  return absl::c_any_of(outputs, floating) && absl::c_none_of(outputs, short_float) &&
         absl::c_any_of(InF64(sample).operands,
                        [](const SampleOperand& o) { return o.type.dtype == DType::kF64; });
}

::testing::AssertionResult CheckGradients(const OpDef& op, const OpSample& f32_sample,
                                          const GradientCheck& check) {
  const OpSample sample = InF64(f32_sample);
  std::mt19937_64 random(20240607);
  const std::vector<Tensor> operands = RandomOperands(sample, random);
  double step = 1e-5;
  GradientCheck scaled = check;
  std::vector<Tensor> weights;
  std::vector<int> weighted;
  for (const TensorType& type : OutputTypes(op, sample)) {
    const int output = static_cast<int>(weights.size());
    weights.emplace_back();
    if (!IsFloating(type.dtype) || absl::c_linear_search(check.statistics, output)) continue;
    if (type.dtype != DType::kF64) {
      step = 1e-2;
      scaled.tolerance = std::max(check.tolerance, 1e-3);
    }
    weights.back() = RandomTensor({type, -1, 1}, random);
    weighted.push_back(output);
  }
  if (weighted.empty()) return ::testing::AssertionFailure() << op.name() << ": no output to differentiate";
  ::testing::AssertionResult result = CheckWeights(op, sample, operands, weights, step, scaled);
  if (!result || weighted.size() == 1) return result;
  for (int output : weighted) {
    std::vector<Tensor> alone(weights.size());
    alone[output] = weights[output];
    result = CheckWeights(op, sample, operands, alone, step, scaled);
    if (!result) return result << " (from the gradient of output " << output << " alone)";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace weft
