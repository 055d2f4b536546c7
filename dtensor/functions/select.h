#ifndef WEFT_DTENSOR_FUNCTIONS_SELECT_H_
#define WEFT_DTENSOR_FUNCTIONS_SELECT_H_

#include <optional>

#include "dtensor/dtensor.h"

// Choosing between elements. Operands broadcast; a number is taken as the tensor's dtype, which must hold it.
//
// Layout: every dim may be split. Where passes two Partial sums on; else a Partial operand is reduced first.
// Cost:   no communication where operands lie alike.
// Errors: InvalidArgument for operands of different dtypes, a condition that is not bool, shapes that do not broadcast, a number
//         that the dtype does not hold.
namespace weft {

// a where the bool condition holds, else b.
DTensor Where(const DTensor& condition, const DTensor& a, const DTensor& b);
DTensor Where(const DTensor& condition, const DTensor& a, double b);
DTensor Where(const DTensor& condition, double a, const DTensor& b);
// `value` where the bool mask holds, else x.
inline DTensor MaskedFill(const DTensor& x, const DTensor& mask, double value) {
  return Where(mask, value, x);
}

// NaN wins. The gradient goes to both in equal parts where they are equal.
DTensor Maximum(const DTensor& a, const DTensor& b);
DTensor Minimum(const DTensor& a, const DTensor& b);
DTensor Maximum(const DTensor& x, double number);
DTensor Minimum(const DTensor& x, double number);

// x cut to [min, max], either of which may be left open; NaN stays. The gradient passes where x lies within,
// bounds included. A bound of integers may lie outside the dtype.
// Errors: InvalidArgument if neither is given, for bounds that are NaN, and for those of integers that are not whole.
struct ClampOptions {
  std::optional<double> min = std::nullopt;
  std::optional<double> max = std::nullopt;
};
DTensor Clamp(const DTensor& x, const ClampOptions& options);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_SELECT_H_
