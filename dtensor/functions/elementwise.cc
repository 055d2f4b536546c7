#include "dtensor/functions/elementwise.h"

#include <cmath>

#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/creation.h"
#include "dtensor/functions/implicit_move.h"
#include "mesh/redistribution/mesh_transfer.h"
#include "ops/elementwise/cast.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/magnitude.h"
#include "ops/elementwise/power.h"
#include "ops/elementwise/scalar_arithmetic.h"
#include "ops/elementwise/transcendental.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

// A number as x's arithmetic has it: halves compute in float.
double NumberBeside(const DTensor& x, double number) {
  return x.dtype() == DType::kF64 ? number : ConvertElement<float>(number);
}

}  // namespace

DTensor Add(const DTensor& a, const DTensor& b) { return CallWider(kAdd, a, b); }
DTensor Sub(const DTensor& a, const DTensor& b) { return CallWider(kSub, a, b); }
DTensor Mul(const DTensor& a, const DTensor& b) { return CallWider(kMul, a, b); }
DTensor Div(const DTensor& a, const DTensor& b) { return CallWider(kDiv, a, b); }

DTensor Add(const DTensor& x, double number) { return Call(kShift, {x}, {}, {.shift = number}); }
DTensor Sub(const DTensor& x, double number) {
  // The least integer is its own negative, modulo 2^bits.
  const bool least =
      (x.dtype() == DType::kI32 && number == -0x1p31) || (x.dtype() == DType::kI64 && number == -0x1p63);
  return Add(x, least ? number : -number);
}
DTensor Sub(double number, const DTensor& x) {
  return Call(kShift, {x}, {}, {.negate = true, .shift = number});
}
// Of terms one that is 0 would be nan times inf, or over 0, and the sum with it.
DTensor Scale(const DTensor& x, double factor) {
  const bool infinite = std::isinf(NumberBeside(x, factor));
  return Call(kScale, {infinite ? Reduced(kScale.name(), x) : x}, {}, {.factor = factor});
}
DTensor Div(const DTensor& x, double number) {
  const bool by_zero = NumberBeside(x, number) == 0;
  return Call(kDivScalar, {by_zero ? Reduced(kDivScalar.name(), x) : x}, {}, {.divisor = number});
}
DTensor Div(double number, const DTensor& x) { return Call(kScalarDiv, {x}, {}, {.dividend = number}); }

DTensor Pow(const DTensor& base, const DTensor& exponent) { return CallWider(kPow, base, exponent); }
DTensor Pow(const DTensor& base, double exponent) {
  return Call(kPowScalar, {base}, {}, {.exponent = exponent});
}
DTensor Pow(double base, const DTensor& exponent) { return Pow(NumberLike(exponent, base), exponent); }

DTensor Neg(const DTensor& x) { return Call(kNeg, {x}); }
DTensor Abs(const DTensor& x) { return Call(kAbs, {x}); }
DTensor Sign(const DTensor& x) { return Call(kSign, {x.Detach()}); }
DTensor Exp(const DTensor& x) { return Call(kExp, {x}); }
DTensor Log(const DTensor& x) { return Call(kLog, {x}); }
DTensor Sqrt(const DTensor& x) { return Call(kSqrt, {x}); }
DTensor Rsqrt(const DTensor& x) { return Call(kRsqrt, {x}); }
DTensor Square(const DTensor& x) { return Call(kSquare, {x}); }
DTensor Sin(const DTensor& x) { return Call(kSin, {x}); }
DTensor Cos(const DTensor& x) { return Call(kCos, {x}); }
DTensor Erf(const DTensor& x) { return Call(kErf, {x}); }
DTensor Tanh(const DTensor& x) { return Call(kTanh, {x}); }
DTensor Sigmoid(const DTensor& x) { return Call(kSigmoid, {x}); }

DTensor Cast(const DTensor& x, DType dtype) { return CastTo(x, dtype); }

DTensor Convert(const DTensor& x, DType dtype) {
  if (IsFloating(dtype)) return Cast(x, dtype);
  return x.dtype() == dtype ? x : Call(kConvert, {x.Detach()}, {.dtype = dtype});
}

}  // namespace weft
