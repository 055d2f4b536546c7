#ifndef WEFT_TESTS_OPS_TOY_OPS_H_
#define WEFT_TESTS_OPS_TOY_OPS_H_

#include <cstdint>

#include "ops/op/op.h"

namespace weft {

// Small ops, one for each kind of sharding rule, with naive kernels: the ground for tests of the core, so
// that these hold whatever the real ops say. Kernels take any floating dtype and compute in f64.

struct ToyMatmulAttributes {
  bool transpose_x = false;  // x is [k, m]
  bool transpose_w = false;  // w is [n, k]

  bool operator==(const ToyMatmulAttributes&) const = default;
};

struct ToyRows {
  int64_t rows = 0;

  bool operator==(const ToyRows&) const = default;
};

struct ToyRate {
  double rate = 0;
};

extern const Op<ToyMatmulAttributes> kToyMatmul;  // "m k, k n -> m n", {x}{w}
extern const Op<> kToyLinear;                     // "m k, k n, n -> m n", {x b}{w b}: the classic silent bug
extern const Op<> kToyAdd;                        // elementwise, {a b}
extern const Op<> kToyRelu;                       // elementwise, not linear
extern const Op<> kToyRowSum;                     // "b d -> b", {x}
extern const Op<> kToyRowMax;                     // "b d -> max: b"
extern const Op<> kToyRowDivide;                  // "b d, b -> b d", {x}
extern const Op<> kToyNormalize;                  // "b d! -> b d!": x / its row's sum, with a decomposition
extern const Op<> kToyRowCumulate;                // "b d! -> b d!": running sums, {x}, without one
extern const Op<> kToyEmbedding;                  // "b, v@ d -> b d": owner-computes, {w}
extern const Op<ToyRows> kToyEmbeddingGrad;       // "b d, b -> v d", {dy}: v in the output alone
extern const Op<> kToyTranspose;                  // "a b -> b a", {x}: a view
extern const Op<NoAttributes, ToyRate> kToySgd;   // p -= rate * g, in place
extern const Op<ToyRows> kToyIota;                // "-> a": the global index, from the box
extern const Op<> kToySum;                        // "x...", {x...}: any number of terms
extern const Op<> kToyMoments;                    // "b d -> b, b": sum and sum of squares, two outputs
extern const Op<> kToyLinearGrad;  // "m k, m n -> k n, n {1}", {x}{dy}: the gradients of w and b
extern const Op<> kToyReluLinear;  // "m k, k n, n -> m n, m k {0}", {w b}: relu(x) w + b, relu(x)

}  // namespace weft

#endif  // WEFT_TESTS_OPS_TOY_OPS_H_
