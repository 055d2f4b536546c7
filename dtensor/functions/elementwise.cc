#include "dtensor/functions/elementwise.h"

#include "dtensor/dispatch.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/random.h"
#include "runtime/base/philox.h"

namespace weft {

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

}  // namespace weft
