// How functions take their operands where an AutocastGuard stands (dtensor/context/rank_state.h). A cast moves nothing and
// keeps the layout, but to f16 of what is Partial, which is reduced first.

#ifndef WEFT_DTENSOR_FUNCTIONS_AUTOCAST_H_
#define WEFT_DTENSOR_FUNCTIONS_AUTOCAST_H_

#include <vector>

#include "dtensor/dispatch.h"
#include "dtensor/dtensor.h"
#include "ops/op/op.h"

namespace weft {

// What Cast is (dtensor/functions/elementwise.h).
DTensor CastTo(const DTensor& x, DType dtype);

// An operand of a product, of attention or of a convolution: in the guard's dtype if it is floating and not f64;
// undefined ones stay so.
DTensor AutocastToProduct(const DTensor& x);

// An operand of a norm or of a softmax: in f32 if it is f16 or bf16.
DTensor AutocastToSingle(const DTensor& x);

// Of two operands of one function of elements (Add, Pow, Maximum, Less, Where): what both are brought to, the
// wider of their floating dtypes (f32 of f16 and bf16); otherwise x as it is.
DTensor AutocastToWider(const DTensor& x, const DTensor& other);

// The same of all parts of a join, at least one.
std::vector<DTensor> AutocastToWidest(const std::vector<DTensor>& parts);

// Whether a guard stands; asked first, so that calls without one cost no more than that.
inline bool Autocasts(const DTensor& x) {
  return x.defined() && x.impl()->context->state().autocast().has_value();
}

// A call of an elementwise op of two operands.
inline DTensor CallWider(const Op<>& op, const DTensor& a, const DTensor& b) {
  if (Autocasts(a)) [[unlikely]]
    return Call(op, {AutocastToWider(a, b), AutocastToWider(b, a)});
  return Call(op, {a, b});
}

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_AUTOCAST_H_
