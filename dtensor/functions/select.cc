#include "dtensor/functions/select.h"

#include "dtensor/dispatch.h"
#include "dtensor/functions/autocast.h"
#include "dtensor/functions/creation.h"
#include "ops/elementwise/select.h"

namespace weft {

DTensor Where(const DTensor& condition, const DTensor& a, const DTensor& b) {
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
  scalars.min = options.min.value_or(scalars.min);
  scalars.max = options.max.value_or(scalars.max);
  return Call(kClamp, {x}, {}, scalars);
}

}  // namespace weft
