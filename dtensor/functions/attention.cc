#include "dtensor/functions/attention.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/random_key.h"
#include "dtensor/functions/shape.h"
#include "ops/attention/attention.h"
#include "ops/attention/masked_attention.h"
#include "ops/attention/packed_attention.h"

namespace weft {
namespace {

// The mask with as many dims as the scores; without one, a zero that repeats.
DTensor FullMask(const DTensor& q, const DTensor& mask) {
  Shape shape;
  const int given = mask.defined() ? mask.ndim() : 0;
  for (int dim = given; dim < q.ndim(); ++dim) shape.push_back(1);
  if (!mask.defined()) return Full(q.context(), q.dtype(), shape, 0);
  for (int64_t extent : mask.shape()) shape.push_back(extent);
  return shape.ndim() == given ? mask : Reshape(mask, shape);
}

}  // namespace

DTensor CausalAttention(const DTensor& q, const DTensor& k, const DTensor& v) {
  return ScaledDotProductAttention(q, k, v, {.causal = true});
}

DTensor PackedCausalAttention(const DTensor& qkv) {
  if (Autocasts(qkv)) [[unlikely]]
    return Call(kPackedAttention, {AutocastToProduct(qkv)}, {.causal = true});
  return Call(kPackedAttention, {qkv}, {.causal = true});
}

DTensor ScaledDotProductAttention(const DTensor& q, const DTensor& k, const DTensor& v,
                                  const AttentionOptions& options) {
  WEFT_REQUIRE(options.dropout >= 0 && options.dropout < 1,
               "ScaledDotProductAttention: expected a dropout rate in [0, 1), got ", options.dropout);
  RankState& state = q.context()->state();
  if (Autocasts(q)) [[unlikely]] {
    AttentionOptions cast = options;
    cast.mask = AutocastToProduct(options.mask);
    const DTensor operands[] = {AutocastToProduct(q), AutocastToProduct(k), AutocastToProduct(v)};
    const AutocastGuard off(state, std::nullopt);
    return ScaledDotProductAttention(operands[0], operands[1], operands[2], cast);
  }
  const bool drops = options.dropout > 0 && state.training();
  const AttentionAttributes attributes = {.causal = options.causal, .scale = options.scale};
  if (!options.mask.defined() && !drops) return Call(kAttention, {q, k, v}, attributes);
  DropoutScalars dropout;
  if (drops) {
    dropout = {.key = NextRandomKey(state), .rate = options.dropout, .batch_offset = state.batch_offset()};
  }
  return Call(kMaskedAttention, {q, k, v, FullMask(q, options.mask)}, attributes, dropout);
}

}  // namespace weft
