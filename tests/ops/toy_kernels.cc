// Naive kernels of the toy ops: any dtype in, f64 within.

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/op/kernel.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/toy_ops.h"

namespace weft {
namespace {

using NoCall = KernelCall<NoAttributes, NoScalars>;

std::vector<double> In(const KernelCallBase& call, int operand) {
  return call.inputs[operand].ToVector<double>();
}

void Out(const KernelCallBase& call, int output, const std::vector<double>& values) {
  CopyTensor(Tensor::FromValues<double>(call.outputs[output].shape(), values), call.outputs[output]);
}

std::vector<double> Product(const Tensor& x_tensor, const Tensor& w_tensor, const ToyMatmulAttributes& a) {
  const Tensor x = a.transpose_x ? x_tensor.Transpose(0, 1) : x_tensor;
  const Tensor w = a.transpose_w ? w_tensor.Transpose(0, 1) : w_tensor;
  const std::vector<double> xs = x.ToVector<double>();
  const std::vector<double> ws = w.ToVector<double>();
  const int64_t m = x.shape()[0], k = x.shape()[1], n = w.shape()[1];
  std::vector<double> y(m * n, 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t l = 0; l < k; ++l) y[i * n + j] += xs[i * k + l] * ws[l * n + j];
    }
  }
  return y;
}

void MatmulKernel(const KernelCall<ToyMatmulAttributes, NoScalars>& call) {
  Out(call, 0, Product(call.inputs[0], call.inputs[1], call.attributes()));
}

void LinearKernel(const NoCall& call) {
  std::vector<double> y = Product(call.inputs[0], call.inputs[1], {});
  const std::vector<double> b = In(call, 2);
  for (size_t i = 0; i < y.size(); ++i) y[i] += b[i % b.size()];
  Out(call, 0, y);
}

void AddKernel(const NoCall& call) {
  std::vector<double> y(call.outputs[0].num_elements(), 0.0);
  for (size_t operand = 0; operand < call.inputs.size(); ++operand) {
    const std::vector<double> x = In(call, static_cast<int>(operand));
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }
  Out(call, 0, y);
}

void ReluKernel(const NoCall& call) {
  std::vector<double> y = In(call, 0);
  for (double& value : y) value = std::max(value, 0.0);
  Out(call, 0, y);
}

void LinearGradKernel(const NoCall& call) {
  Out(call, 0, Product(call.inputs[0], call.inputs[1], {.transpose_x = true}));
  const std::vector<double> dy = In(call, 1);
  std::vector<double> db(call.outputs[1].num_elements(), 0.0);
  for (size_t i = 0; i < dy.size(); ++i) db[i % db.size()] += dy[i];
  Out(call, 1, db);
}

void ReluLinearKernel(const NoCall& call) {
  std::vector<double> r = In(call, 0);
  for (double& value : r) value = std::max(value, 0.0);
  Out(call, 1, r);
  std::vector<double> y = Product(Tensor::FromValues<double>(call.inputs[0].shape(), r), call.inputs[1], {});
  const std::vector<double> b = In(call, 2);
  for (size_t i = 0; i < y.size(); ++i) y[i] += b[i % b.size()];
  Out(call, 0, y);
}

void SgdKernel(const KernelCall<NoAttributes, ToyRate>& call) {
  std::vector<double> p = In(call, 0);
  const std::vector<double> g = In(call, 1);
  for (size_t i = 0; i < p.size(); ++i) p[i] -= call.scalars().rate * g[i];
  Out(call, 0, p);
}

template <class Combine>
std::vector<double> FoldRows(const Tensor& x, double start, Combine combine) {
  const std::vector<double> values = x.ToVector<double>();
  const int64_t d = x.shape()[1];
  std::vector<double> y(x.shape()[0], start);
  for (size_t i = 0; i < values.size(); ++i) y[i / d] = combine(y[i / d], values[i]);
  return y;
}

std::vector<double> RowSums(const Tensor& x) {
  return FoldRows(x, 0, [](double sum, double value) { return sum + value; });
}

void RowSumKernel(const NoCall& call) { Out(call, 0, RowSums(call.inputs[0])); }

void RowMaxKernel(const NoCall& call) {
  Out(call, 0,
      FoldRows(call.inputs[0], -std::numeric_limits<double>::infinity(),
               [](double best, double value) { return std::max(best, value); }));
}

void MomentsKernel(const NoCall& call) {
  Out(call, 0, RowSums(call.inputs[0]));
  Out(call, 1, FoldRows(call.inputs[0], 0, [](double sum, double value) { return sum + value * value; }));
}

std::vector<double> DivideRows(const Tensor& x, const std::vector<double>& s) {
  std::vector<double> y = x.ToVector<double>();
  for (size_t i = 0; i < y.size(); ++i) y[i] /= s[i / x.shape()[1]];
  return y;
}

void RowDivideKernel(const NoCall& call) { Out(call, 0, DivideRows(call.inputs[0], In(call, 1))); }
void NormalizeKernel(const NoCall& call) {
  Out(call, 0, DivideRows(call.inputs[0], RowSums(call.inputs[0])));
}

void CumulateKernel(const NoCall& call) {
  std::vector<double> y = In(call, 0);
  const size_t d = call.inputs[0].shape()[1];
  for (size_t i = 0; i < y.size(); ++i) y[i] += i % d == 0 ? 0 : y[i - 1];
  Out(call, 0, y);
}

void EmbeddingKernel(const NoCall& call) {
  const std::vector<double> ids = In(call, 0);
  const std::vector<double> table = In(call, 1);
  const ShardBox& box = call.input_boxes[1];
  const int64_t d = box.shape[1];
  std::vector<double> y(ids.size() * d, 0.0);
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t row = static_cast<int64_t>(ids[i]) - box.offset[0];
    if (row < 0 || row >= box.shape[0]) continue;
    for (int64_t j = 0; j < d; ++j) y[i * d + j] = table[row * d + j];
  }
  Out(call, 0, y);
}

void EmbeddingGradKernel(const KernelCall<ToyRows, NoScalars>& call) {
  const std::vector<double> dy = In(call, 0);
  const std::vector<double> ids = In(call, 1);
  const ShardBox& box = call.output_boxes[0];
  const int64_t d = box.shape[1];
  std::vector<double> dw(box.shape.num_elements(), 0.0);
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t row = static_cast<int64_t>(ids[i]) - box.offset[0];
    if (row < 0 || row >= box.shape[0]) continue;
    for (int64_t j = 0; j < d; ++j) dw[row * d + j] += dy[i * d + j];
  }
  Out(call, 0, dw);
}

void TransposeKernel(const NoCall& call) { call.outputs[0] = call.inputs[0].Transpose(0, 1); }

void IotaKernel(const KernelCall<ToyRows, NoScalars>& call) {
  std::vector<double> y(call.output_boxes[0].shape[0]);
  for (size_t i = 0; i < y.size(); ++i)
    y[i] = static_cast<double>(call.output_boxes[0].offset[0]) + static_cast<double>(i);
  Out(call, 0, y);
}

const RegisterKernel kRegistered[] = {
    {kToyMatmul, DeviceType::kCpu, MatmulKernel},
    {kToyLinear, DeviceType::kCpu, LinearKernel},
    {kToyAdd, DeviceType::kCpu, AddKernel},
    {kToyRelu, DeviceType::kCpu, ReluKernel},
    {kToyRowSum, DeviceType::kCpu, RowSumKernel},
    {kToyRowMax, DeviceType::kCpu, RowMaxKernel},
    {kToyRowDivide, DeviceType::kCpu, RowDivideKernel},
    {kToyNormalize, DeviceType::kCpu, NormalizeKernel},
    {kToyRowCumulate, DeviceType::kCpu, CumulateKernel},
    {kToyEmbedding, DeviceType::kCpu, EmbeddingKernel},
    {kToyEmbeddingGrad, DeviceType::kCpu, EmbeddingGradKernel},
    {kToyTranspose, DeviceType::kCpu, TransposeKernel},
    {kToySgd, DeviceType::kCpu, SgdKernel},
    {kToyIota, DeviceType::kCpu, IotaKernel},
    {kToySum, DeviceType::kCpu, AddKernel},
    {kToyMoments, DeviceType::kCpu, MomentsKernel},
    {kToyLinearGrad, DeviceType::kCpu, LinearGradKernel},
    {kToyReluLinear, DeviceType::kCpu, ReluLinearKernel},
};

}  // namespace
}  // namespace weft
