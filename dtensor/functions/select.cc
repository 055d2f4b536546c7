#include "dtensor/functions/select.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/creation.h"
#include "ops/elementwise/select.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

// The bound as x's dtype has it, with which elements that equal it are compared; integers saturate.
double BoundLike(const DTensor& x, double bound) {
  const DType dtype = x.dtype();
  if (!IsFloating(dtype)) return bound;
  RequireFinite("Clamp", dtype, bound);
  return VisitFloating(dtype, "Clamp", [&](auto tag) {
    return ConvertElement<double>(ConvertElement<typename decltype(tag)::type>(bound));
  });
}

}  // namespace

DTensor Where(const DTensor& condition, const DTensor& a, const DTensor& b) {
  if (Autocasts(a)) [[unlikely]]
    return Call(kWhere, {condition, AutocastToWider(a, b), AutocastToWider(b, a)});
  return Call(kWhere, {condition, a, b});
}
DTensor Where(const DTensor& condition, const DTensor& a, double b) {
  return Where(condition, a, NumberLike(a, b));
}
DTensor Where(const DTensor& condition, double a, const DTensor& b) {
  return Where(condition, NumberLike(b, a), b);
}

DTensor Maximum(const DTensor& a, const DTensor& b) { return CallWider(kMaximum, a, b); }
DTensor Minimum(const DTensor& a, const DTensor& b) { return CallWider(kMinimum, a, b); }
DTensor Maximum(const DTensor& x, double number) { return Maximum(x, NumberLike(x, number)); }
DTensor Minimum(const DTensor& x, double number) { return Minimum(x, NumberLike(x, number)); }

DTensor Clamp(const DTensor& x, const ClampOptions& options) {
  WEFT_REQUIRE(options.min.has_value() || options.max.has_value(), "Clamp: expected a min, a max or both");
  ClampScalars scalars;
  if (options.min.has_value()) scalars.min = BoundLike(x, *options.min);
  if (options.max.has_value()) scalars.max = BoundLike(x, *options.max);
  return Call(kClamp, {x}, {}, scalars);
}

}  // namespace weft
