#include "tests/ops/toy_ops.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/kernel.h"
#include "ops/sharding_rule.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

using Types = absl::Span<const TensorType>;
using NoCall = KernelCall<NoAttributes, NoScalars>;
using NoContext = GradContext<NoAttributes, NoScalars>;

std::vector<double> In(const KernelCallBase& call, int operand) {
  return call.inputs[operand].ToVector<double>();
}

void Out(const KernelCallBase& call, int output, const std::vector<double>& values) {
  CopyTensor(Tensor::FromValues<double>(call.outputs[output].shape(), values), call.outputs[output]);
}

TensorType F32(Shape shape) { return {DType::kF32, shape}; }

template <int num_operands, int num_outputs = 1>
std::string Elementwise(Types types, const NoAttributes&) {
  return ElementwiseRule(num_operands, num_outputs, types[0].ndim());
}
TensorTypes LikeFirst(Types types, const NoAttributes&) { return {types[0]}; }

TensorTypes MatmulInfer(Types types, const ToyMatmulAttributes& a) {
  const int64_t m = types[0].shape[a.transpose_x ? 1 : 0];
  const int64_t n = types[1].shape[a.transpose_w ? 0 : 1];
  return {{types[0].dtype, {m, n}}};
}

std::string MatmulRule(Types, const ToyMatmulAttributes& a) {
  return absl::StrCat(a.transpose_x ? "k m" : "m k", ", ", a.transpose_w ? "n k" : "k n", " -> m n");
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

void MatmulBackward(GradContext<ToyMatmulAttributes, NoScalars>& context) {
  // For y = x w only; the transposed forms serve as its gradients.
  const Value dy = context.grad();
  if (context.Wants(0))
    context.SetGrad(0, context.Emit(kToyMatmul, {dy, context.saved("w")}, {.transpose_w = true}));
  if (context.Wants(1))
    context.SetGrad(1, context.Emit(kToyMatmul, {context.saved("x"), dy}, {.transpose_x = true}));
}

std::vector<Sample<ToyMatmulAttributes>> MatmulSamples() {
  return {{.operands = {{F32({3, 5})}, {F32({5, 2})}}}};
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

void SgdKernel(const KernelCall<NoAttributes, ToyRate>& call) {
  std::vector<double> p = In(call, 0);
  const std::vector<double> g = In(call, 1);
  for (size_t i = 0; i < p.size(); ++i) p[i] -= call.scalars().rate * g[i];
  Out(call, 0, p);
}

std::string SumRule(Types types, const NoAttributes&) {
  return ElementwiseRule(static_cast<int>(types.size()), 1, types[0].ndim());
}

TensorTypes RowsInfer(Types types, const NoAttributes&) { return {{types[0].dtype, {types[0].shape[0]}}}; }
TensorTypes MomentsInfer(Types types, const NoAttributes& a) {
  return {RowsInfer(types, a)[0], RowsInfer(types, a)[0]};
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

Values NormalizeLowering(Emitter& emitter, absl::Span<const Value> x, const NoAttributes&, const NoScalars&) {
  return {emitter.Emit(kToyRowDivide, {x[0], emitter.Emit(kToyRowSum, {x[0]})})};
}

TensorTypes EmbeddingInfer(Types types, const NoAttributes&) {
  return {{types[1].dtype, {types[0].shape[0], types[1].shape[1]}}};
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

TensorTypes EmbeddingGradInfer(Types types, const ToyRows& a) {
  return {{types[0].dtype, {a.rows, types[0].shape[1]}}};
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

}  // namespace

constinit const Op<ToyMatmulAttributes> kToyMatmul = {{.name = "toy_matmul",
                                                       .operands = "x w",
                                                       .infer = MatmulInfer,
                                                       .rule = MatmulRule,
                                                       .linear = "{x}{w}",
                                                       .saves = "x w",
                                                       .backward = MatmulBackward,
                                                       .samples = MatmulSamples}};

constinit const Op<> kToyLinear = {
    {.name = "toy_linear",
     .operands = "x w b",
     .infer = +[](Types types, const NoAttributes&) { return MatmulInfer(types, {}); },
     .rule = +[](Types, const NoAttributes&) -> std::string { return "m k, k n, n -> m n"; },
     .linear = "{x b}{w b}",
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{F32({2, 5})}, {F32({5, 3})}, {F32({3})}}}};
     }}};

constinit const Op<> kToyAdd = {{.name = "toy_add",
                                 .operands = "a b",
                                 .infer = LikeFirst,
                                 .rule = Elementwise<2>,
                                 .linear = "{a b}",
                                 .backward =
                                     +[](NoContext& context) {
                                       for (int i : {0, 1}) {
                                         if (context.Wants(i)) context.SetGrad(i, context.grad());
                                       }
                                     },
                                 .samples = +[]() -> std::vector<Sample<>> {
                                   return {{.operands = {{F32({3, 2})}, {F32({3, 2})}}}};
                                 }}};

constinit const Op<> kToyRelu = {{.name = "toy_relu",
                                  .operands = "x",
                                  .infer = LikeFirst,
                                  .rule = Elementwise<1>,
                                  .samples = +[]() -> std::vector<Sample<>> {
                                    return {{.operands = {{F32({5, 3})}}}};
                                  }}};

constinit const Op<> kToyRowSum = {
    {.name = "toy_row_sum",
     .operands = "x",
     .infer = RowsInfer,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d -> b"; },
     .linear = "{x}",
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{F32({2, 5})}}}};
     }}};

constinit const Op<> kToyRowMax = {
    {.name = "toy_row_max",
     .operands = "x",
     .infer = RowsInfer,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d -> max: b"; },
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{F32({5, 4}), -2, -1}}}};
     }}};

constinit const Op<> kToyRowDivide = {
    {.name = "toy_row_divide",
     .operands = "x s",
     .infer = LikeFirst,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d, b -> b d"; },
     .linear = "{x}",
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{F32({3, 5})}, {F32({3}), 1, 2}}}};
     }}};

constinit const Op<> kToyNormalize = {
    {.name = "toy_normalize",
     .operands = "x",
     .infer = LikeFirst,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d! -> b d!"; },
     .lowering = NormalizeLowering,
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{F32({3, 5}), 1, 2}}}};
     }}};

constinit const Op<> kToyRowCumulate = {
    {.name = "toy_row_cumulate",
     .operands = "x",
     .infer = LikeFirst,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d! -> b d!"; },
     .linear = "{x}",
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{F32({3, 5})}}}};
     }}};

constinit const Op<> kToyEmbedding = {
    {.name = "toy_embedding",
     .operands = "ids w",
     .infer = EmbeddingInfer,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b, v@ d -> b d"; },
     .linear = "{w}",
     .saves = "ids",
     .backward =
         +[](NoContext& context) {
           if (!context.Wants(1)) return;
           context.SetGrad(1, context.EmitLike(1, kToyEmbeddingGrad, {context.grad(), context.saved("ids")},
                                               {.rows = context.operand_type(1).shape[0]}));
         },
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{{DType::kI64, {7}}, 0, 5}, {F32({5, 3})}}}};
     }}};

constinit const Op<ToyRows> kToyEmbeddingGrad = {
    {.name = "toy_embedding_grad",
     .operands = "dy ids",
     .infer = EmbeddingGradInfer,
     .rule = +[](Types, const ToyRows&) -> std::string { return "b d, b -> v d"; },
     .linear = "{dy}",
     .samples = +[]() -> std::vector<Sample<ToyRows>> {
       return {{.operands = {{F32({7, 3})}, {{DType::kI64, {7}}, 0, 5}}, .attributes = {.rows = 5}}};
     }}};

constinit const Op<> kToyTranspose = {
    {.name = "toy_transpose",
     .operands = "x",
     .infer = +[](Types t, const NoAttributes&) -> TensorTypes {
       return {{t[0].dtype, {t[0].shape[1], t[0].shape[0]}}};
     },
     .rule = +[](Types, const NoAttributes&) -> std::string { return "a b -> b a"; },
     .linear = "{x}",
     .is_view = true,
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{F32({3, 4})}}}};
     }}};

constinit const Op<NoAttributes, ToyRate> kToySgd = {
    {.name = "toy_sgd",
     .operands = "p g",
     .outputs = "p",
     .infer = LikeFirst,
     .rule = Elementwise<2>,
     .in_place = "p",
     .samples = +[]() -> std::vector<Sample<NoAttributes, ToyRate>> {
       return {{.operands = {{F32({5, 2})}, {F32({5, 2})}}, .scalars = {.rate = 0.5}}};
     }}};

constinit const Op<ToyRows> kToyIota = {{.name = "toy_iota",
                                         .operands = "",
                                         .infer = +[](Types, const ToyRows& a) -> TensorTypes {
                                           return {{DType::kF64, {a.rows}}};
                                         },
                                         .rule = +[](Types, const ToyRows&) -> std::string { return "-> a"; },
                                         .samples = +[]() -> std::vector<Sample<ToyRows>> {
                                           return {{.operands = {}, .attributes = {.rows = 5}}};
                                         }}};

constinit const Op<> kToySum = {{.name = "toy_sum",
                                 .operands = "x...",
                                 .infer = LikeFirst,
                                 .rule = SumRule,
                                 .linear = "{x...}",
                                 .samples = +[]() -> std::vector<Sample<>> {
                                   return {{.operands = {{F32({3})}, {F32({3})}, {F32({3})}}}};
                                 }}};

constinit const Op<> kToyMoments = {
    {.name = "toy_moments",
     .operands = "x",
     .outputs = "sum squares",
     .infer = MomentsInfer,
     .rule = +[](Types, const NoAttributes&) -> std::string { return "b d -> b, b"; },
     .samples = +[]() -> std::vector<Sample<>> {
       return {{.operands = {{F32({3, 4})}}}};
     }}};

namespace {

const RegisterKernel kMatmulCpu(kToyMatmul, DeviceType::kCpu, MatmulKernel);
const RegisterKernel kLinearCpu(kToyLinear, DeviceType::kCpu, LinearKernel);
const RegisterKernel kAddCpu(kToyAdd, DeviceType::kCpu, AddKernel);
const RegisterKernel kReluCpu(kToyRelu, DeviceType::kCpu, ReluKernel);
const RegisterKernel kRowSumCpu(kToyRowSum, DeviceType::kCpu, RowSumKernel);
const RegisterKernel kRowMaxCpu(kToyRowMax, DeviceType::kCpu, RowMaxKernel);
const RegisterKernel kRowDivideCpu(kToyRowDivide, DeviceType::kCpu, RowDivideKernel);
const RegisterKernel kNormalizeCpu(kToyNormalize, DeviceType::kCpu, NormalizeKernel);
const RegisterKernel kRowCumulateCpu(kToyRowCumulate, DeviceType::kCpu, CumulateKernel);
const RegisterKernel kEmbeddingCpu(kToyEmbedding, DeviceType::kCpu, EmbeddingKernel);
const RegisterKernel kEmbeddingGradCpu(kToyEmbeddingGrad, DeviceType::kCpu, EmbeddingGradKernel);
const RegisterKernel kTransposeCpu(kToyTranspose, DeviceType::kCpu, TransposeKernel);
const RegisterKernel kSgdCpu(kToySgd, DeviceType::kCpu, SgdKernel);
const RegisterKernel kIotaCpu(kToyIota, DeviceType::kCpu, IotaKernel);
const RegisterKernel kSumCpu(kToySum, DeviceType::kCpu, AddKernel);
const RegisterKernel kMomentsCpu(kToyMoments, DeviceType::kCpu, MomentsKernel);

}  // namespace
}  // namespace weft
