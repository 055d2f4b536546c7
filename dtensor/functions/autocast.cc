#include "dtensor/functions/autocast.h"

#include "dtensor/dispatch.h"
#include "ops/elementwise/cast.h"

namespace weft {
namespace {

DTensor CastTo(const DTensor& x, DType dtype) {
  return x.dtype() == dtype ? x : Call(kCast, {x}, {.dtype = dtype});
}

bool MayCast(const DTensor& x) {
  return x.defined() && IsFloating(x.dtype()) && x.dtype() != DType::kF64 && Autocasts(x);
}

}  // namespace

DTensor AutocastToProduct(const DTensor& x) {
  return MayCast(x) ? CastTo(x, *x.context()->state().autocast()) : x;
}

DTensor AutocastToSingle(const DTensor& x) { return MayCast(x) ? CastTo(x, DType::kF32) : x; }

DTensor AutocastToWider(const DTensor& x, const DTensor& other) {
  const DType a = x.dtype(), b = other.dtype();
  if (a == b || !IsFloating(a) || !IsFloating(b) || ItemSize(a) > ItemSize(b)) return x;
  return CastTo(x, ItemSize(a) < ItemSize(b) ? b : DType::kF32);
}

}  // namespace weft
