#include "dtensor/functions.h"

#include <numeric>
#include <string>

#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/concat.h"
#include "ops/contract.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/layer_norm.h"
#include "ops/permute.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/reshape.h"
#include "ops/rms_norm.h"
#include "ops/rotary.h"
#include "ops/slice.h"
#include "ops/softmax.h"
#include "ops/stack.h"
#include "runtime/base/philox.h"

namespace weft {
namespace {

DimMask MaskOf(const std::vector<int>& dims, int ndim, absl::string_view what) {
  if (dims.empty()) return AllDims(ndim);
  DimMask mask = 0;
  for (int dim : dims) mask |= DimMask{1} << NormalizeDim(dim, ndim, what);
  return mask;
}

DimLabels LabelsOf(absl::string_view letters) {
  DimLabels labels;
  for (char letter : letters) labels.push_back(letter);
  return labels;
}

}  // namespace

DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value) {
  return Full(context, dtype, shape, value, Layout(shape.ndim(), context->mesh().num_axes()));
}

DTensor Full(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape, double value,
             const Layout& layout) {
  return Create(kFill, context, layout, {.dtype = dtype, .shape = shape}, {.value = value});
}

DTensor RandomNormal(const IntrusivePtr<MeshContext>& context, DType dtype, const Shape& shape,
                     const Layout& layout, absl::string_view stream) {
  const RandomKey key{
      .seed = context->state().seed(), .stream = StreamOf(stream), .step = context->state().step()};
  return Create(kRandomNormal, context, layout, {.dtype = dtype, .shape = shape},
                {.key = key, .mean = 0, .stddev = 1});
}

DTensor Add(const DTensor& a, const DTensor& b) { return Call(kAdd, {a, b}); }
DTensor Sub(const DTensor& a, const DTensor& b) { return Call(kSub, {a, b}); }
DTensor Mul(const DTensor& a, const DTensor& b) { return Call(kMul, {a, b}); }
DTensor Div(const DTensor& a, const DTensor& b) { return Call(kDiv, {a, b}); }
DTensor Scale(const DTensor& x, double factor) { return Call(kScale, {x}, {}, {.factor = factor}); }

DTensor Exp(const DTensor& x) { return Call(kExp, {x}); }
DTensor Log(const DTensor& x) { return Call(kLog, {x}); }
DTensor Sqrt(const DTensor& x) { return Call(kSqrt, {x}); }
DTensor Square(const DTensor& x) { return Call(kSquare, {x}); }
DTensor Tanh(const DTensor& x) { return Call(kTanh, {x}); }
DTensor Relu(const DTensor& x) { return Call(kRelu, {x}); }
DTensor Silu(const DTensor& x) { return Call(kSilu, {x}); }
DTensor Gelu(const DTensor& x) { return Call(kGelu, {x}); }
DTensor Cast(const DTensor& x, DType dtype) {
  return x.dtype() == dtype ? x : Call(kCast, {x}, {.dtype = dtype});
}

DTensor Dropout(const DTensor& x, double rate) {
  RankState& state = x.context()->state();
  if (rate == 0 || !state.training()) return x;
  const RandomKey key{.seed = state.seed(),
                      .stream = StreamOf(state.PathName(state.path_id()), state.NextCallNumber()),
                      .step = state.step()};
  return Call(kDropout, {x}, {}, {.key = key, .rate = rate});
}

DTensor Sum(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Call(kSum, {x}, {.dims = MaskOf(dims, x.ndim(), "Sum"), .keepdims = keep_dims});
}

DTensor Mean(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Call(kMean, {x}, {.dims = MaskOf(dims, x.ndim(), "Mean"), .keepdims = keep_dims});
}

DTensor MatMul(const DTensor& x, const DTensor& w) {
  const bool batched = w.ndim() > 2;
  WEFT_REQUIRE(x.ndim() >= 2 && x.ndim() <= Shape::kMaxDims && (w.ndim() == 2 || w.ndim() == x.ndim()),
               "MatMul: expected [..., m, k] x [k, n], or as many dims on both sides; got ", x.ToString(),
               " and ", w.ToString());
  const std::string lead = std::string("abcdef").substr(0, x.ndim() - 2);
  return Contract(x, lead + "mk", w, batched ? lead + "kn" : "kn", lead + "mn");
}

DTensor Contract(const DTensor& x, absl::string_view x_dims, const DTensor& w, absl::string_view w_dims,
                 absl::string_view y_dims) {
  return Call(kContract, {x, w}, {.x = LabelsOf(x_dims), .w = LabelsOf(w_dims), .y = LabelsOf(y_dims)});
}

DTensor Reshape(const DTensor& x, const Shape& shape) { return Call(kReshape, {x}, {.shape = shape}); }

DTensor Permute(const DTensor& x, const std::vector<int>& order) {
  PermuteAttributes attributes;
  for (int dim : order) attributes.order.push_back(NormalizeDim(dim, x.ndim(), "Permute"));
  return Call(kPermute, {x}, attributes);
}

DTensor Transpose(const DTensor& x, int dim_a, int dim_b) {
  std::vector<int> order(x.ndim());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[NormalizeDim(dim_a, x.ndim(), "Transpose")],
            order[NormalizeDim(dim_b, x.ndim(), "Transpose")]);
  return Permute(x, order);
}

DTensor Slice(const DTensor& x, int dim, int64_t start, int64_t length) {
  return Call(kSlice, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Slice"), .start = start, .length = length});
}

DTensor Concat(const std::vector<DTensor>& parts, int dim) {
  WEFT_REQUIRE(!parts.empty(), "Concat: expected at least one tensor");
  return CallAll(kConcat, parts, {.dim = NormalizeDim(dim, parts[0].ndim(), "Concat")})[0];
}

DTensor Stack(const std::vector<DTensor>& parts, int dim) {
  WEFT_REQUIRE(!parts.empty(), "Stack: expected at least one tensor");
  return CallAll(kStack, parts, {.dim = NormalizeDim(dim, parts[0].ndim() + 1, "Stack")})[0];
}

std::vector<DTensor> Unbind(const DTensor& x, int dim) {
  const DTensors parts = CallAll(kUnbind, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Unbind")});
  return {parts.begin(), parts.end()};
}

DTensor Softmax(const DTensor& x) { return Call(kSoftmax, {x}); }

DTensor LayerNormalize(const DTensor& x, const DTensor& weight, const DTensor& bias, double epsilon) {
  return Call(kLayerNorm, {x, weight, bias}, {.eps = epsilon});
}

DTensor RmsNormalize(const DTensor& x, const DTensor& weight, double epsilon) {
  return Call(kRmsNorm, {x, weight}, {.eps = epsilon});
}

DTensor EmbeddingLookup(const DTensor& tokens, const DTensor& table) {
  return Call(kEmbedding, {tokens, table});
}

DTensor CausalAttention(const DTensor& q, const DTensor& k, const DTensor& v) {
  return Call(kAttention, {q, k, v}, {.causal = true});
}

DTensor Rotary(const DTensor& x, double base) { return Call(kRotary, {x}, {.base = base}); }

DTensor LossSum::Mean() const {
  PurposeGuard purpose(sum.context()->state(), Purpose::kLoss);
  // Were both Partial, a quotient of terms would mean nothing, and both would be reduced.
  return Div(sum, count.Redistribute(Layout(/*ndim=*/0, count.layout().num_axes())));
}

LossSum CrossEntropy(const DTensor& logits, const DTensor& targets, const CrossEntropyOptions& options) {
  const DTensors outputs =
      CallAll(kCrossEntropy, {logits, targets},
              {.ignore_index = options.ignore_index, .label_smoothing = options.label_smoothing});
  return {.sum = outputs[0], .count = outputs[1].Detach()};
}

}  // namespace weft
