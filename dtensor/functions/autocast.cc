#include "dtensor/functions/autocast.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/implicit_move.h"
#include "ops/elementwise/cast.h"

namespace weft {
namespace {

bool MayCast(const DTensor& x) {
  return x.defined() && IsFloating(x.dtype()) && x.dtype() != DType::kF64 && Autocasts(x);
}

}  // namespace

DTensor CastTo(const DTensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const bool lies_well = CastsAsItLies(x.dtype(), dtype, x.layout());
  return Call(kCast, {lies_well ? x : Reduced(kCast.name(), x)}, {.dtype = dtype});
}

DTensor AutocastToProduct(const DTensor& x) {
  return MayCast(x) ? CastTo(x, *x.context()->state().autocast()) : x;
}

DTensor AutocastToSingle(const DTensor& x) { return MayCast(x) ? CastTo(x, DType::kF32) : x; }

DTensor AutocastToWider(const DTensor& x, const DTensor& other) {
  return CastTo(x, WiderOf(x.dtype(), other.dtype()));
}

std::vector<DTensor> AutocastToWidest(const std::vector<DTensor>& parts) {
  DType widest = parts[0].dtype();
  for (const DTensor& part : parts) {
    if (!part.defined()) return parts;  // which the function refuses
    widest = WiderOf(widest, part.dtype());
  }
  std::vector<DTensor> same;
  for (const DTensor& part : parts) {
    const bool casts = IsFloating(widest) && IsFloating(part.dtype());
    same.push_back(casts ? CastTo(part, widest) : part);
  }
  return same;
}

}  // namespace weft
