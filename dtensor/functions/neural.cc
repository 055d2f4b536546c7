#include "dtensor/functions/neural.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/elementwise.h"
#include "dtensor/functions/reduce.h"
#include "dtensor/functions/shape.h"
#include "ops/attention/attention.h"
#include "ops/attention/packed_attention.h"
#include "ops/attention/rotary.h"
#include "ops/indexing/embedding.h"
#include "ops/normalization/cross_entropy.h"
#include "ops/normalization/layer_norm.h"
#include "ops/normalization/rms_norm.h"
#include "ops/normalization/softmax.h"

namespace weft {

namespace {

DTensor OverDim(const Op<>& op, const DTensor& x, int dim, absl::string_view what) {
  const int last = x.ndim() - 1;
  dim = NormalizeDim(dim, x.ndim(), what);
  if (dim == last) return Call(op, {x});
  return Transpose(Call(op, {Transpose(x, dim, last)}), dim, last);
}

// f32 for halves: where differences and sums are made.
DTensor InSinglePrecision(const DTensor& x) { return x.dtype() == DType::kF64 ? x : Cast(x, DType::kF32); }

}  // namespace

DTensor Softmax(const DTensor& x, int dim) { return OverDim(kSoftmax, x, dim, "Softmax"); }
DTensor LogSoftmax(const DTensor& x, int dim) { return OverDim(kLogSoftmax, x, dim, "LogSoftmax"); }

DTensor LayerNormalize(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps) {
  return Call(kLayerNorm, {x, weight, bias}, {.eps = eps});
}

DTensor RmsNormalize(const DTensor& x, const DTensor& weight, double eps) {
  return Call(kRmsNorm, {x, weight}, {.eps = eps});
}

DTensor EmbeddingLookup(const DTensor& tokens, const DTensor& table) {
  return Call(kEmbedding, {tokens, table});
}

DTensor CausalAttention(const DTensor& q, const DTensor& k, const DTensor& v) {
  return Call(kAttention, {q, k, v}, {.causal = true});
}

DTensor PackedCausalAttention(const DTensor& qkv) { return Call(kPackedAttention, {qkv}, {.causal = true}); }

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

LossSum MseLoss(const DTensor& prediction, const DTensor& target) {
  WEFT_REQUIRE(prediction.type() == target.type() && IsFloating(prediction.dtype()),
               "MseLoss: expected a prediction and a target of one floating type, got ",
               prediction.ToString(), " and ", target.ToString());
  const DTensor difference = Sub(InSinglePrecision(prediction), InSinglePrecision(target));
  const DTensor sum = Sum(Square(difference));
  return {.sum = sum, .count = FullLike(sum, static_cast<double>(prediction.shape().num_elements()))};
}

}  // namespace weft
