#ifndef WEFT_OPS_ELEMENTWISE_TERM_H_
#define WEFT_OPS_ELEMENTWISE_TERM_H_

#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/cast.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/scalar_arithmetic.h"
#include "ops/elementwise/select.h"
#include "ops/op/emitter.h"

namespace weft {

// A value inside a backward rule, with operators that emit: formulas as they are written. Operands of one
// operator have one dtype and broadcast.
struct Term {
  Emitter* emitter = nullptr;
  Value value;

  bool defined() const { return value.defined(); }
  TensorType type() const { return emitter->TypeOf(value); }
};

inline Term operator+(const Term& a, const Term& b) {
  return {a.emitter, a.emitter->Emit(kAdd, {a.value, b.value})};
}
inline Term operator-(const Term& a, const Term& b) {
  return {a.emitter, a.emitter->Emit(kSub, {a.value, b.value})};
}
inline Term operator*(const Term& a, const Term& b) {
  return {a.emitter, a.emitter->Emit(kMul, {a.value, b.value})};
}
inline Term operator/(const Term& a, const Term& b) {
  return {a.emitter, a.emitter->Emit(kDiv, {a.value, b.value})};
}
inline Term operator*(const Term& a, double factor) {
  return {a.emitter, a.emitter->Emit(kScale, {a.value}, {}, {.factor = factor})};
}
inline Term operator-(const Term& a) { return {a.emitter, a.emitter->Emit(kNeg, {a.value})}; }
inline Term Exp(const Term& a) { return {a.emitter, a.emitter->Emit(kExp, {a.value})}; }
inline Term Log(const Term& a) { return {a.emitter, a.emitter->Emit(kLog, {a.value})}; }

// The sum of those of the two that are defined.
inline Term Plus(const Term& a, const Term& b) { return !a.defined() ? b : !b.defined() ? a : a + b; }

inline Term Cast(const Term& a, DType dtype) {
  return a.type().dtype == dtype ? a : Term{a.emitter, a.emitter->Emit(kCast, {a.value}, {.dtype = dtype})};
}

// Whether elements are not 0, as bool.
inline Term IsNotZero(const Term& a) {
  return {a.emitter, a.emitter->Emit(kConvert, {a.value}, {.dtype = DType::kBool})};
}
// a where the bool condition holds, else 0: of inf and nan, too.
inline Term KeptWhere(const Term& condition, const Term& a) {
  return {a.emitter, a.emitter->Emit(kKeepWhere, {condition.value, a.value})};
}
// 1 where a is 0, else 0, in a's dtype.
inline Term OneWhereZero(const Term& a) {
  const Value is_not_zero = a.emitter->Emit(kConvert, {IsNotZero(a).value}, {.dtype = a.type().dtype});
  return {a.emitter, a.emitter->Emit(kShift, {is_not_zero}, {}, {.negate = true, .shift = 1})};
}
// a, with 1 in place of 0: it can be divided by, and its powers are finite.
inline Term OneForZero(const Term& a) { return a + OneWhereZero(a); }

// Summed over the dims of `how`; summed to a shape that broadcasts to a's.
inline Term SumOver(const Term& a, const ReduceAttributes& how) {
  return {a.emitter, a.emitter->Emit(kSum, {a.value}, how)};
}
inline Term SumTo(const Term& a, const Shape& shape) {
  return a.type().shape == shape ? a : Term{a.emitter, a.emitter->Emit(kSumTo, {a.value}, {.shape = shape})};
}
// What a reduction by `how` took away from `shape`, repeated.
inline Term Spread(const Term& a, const Shape& shape, const ReduceAttributes& how) {
  return {a.emitter, a.emitter->Emit(kBroadcastTo, {a.value},
                                     {.shape = shape, .missing_dims = how.keepdims ? 0 : how.dims})};
}

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_TERM_H_
