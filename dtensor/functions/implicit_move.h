#ifndef WEFT_DTENSOR_FUNCTIONS_IMPLICIT_MOVE_H_
#define WEFT_DTENSOR_FUNCTIONS_IMPLICIT_MOVE_H_

#include "absl/strings/string_view.h"
#include "dtensor/dtensor.h"

namespace weft {

// x as `layout`, where a function moves it though nobody asked for that: Redistribute, counted as the moves of an op's
// operands are. `name` and `what` are for messages: "flip", "the result".
//
// Cost:   PlanRedistribution's steps; none where x lies so.
// Errors: those of the guards in force.
DTensor MoveImplicitly(absl::string_view name, absl::string_view what, const DTensor& x,
                       const Layout& layout);

// x, operand 0 of the op of that name, reduced first where it is Partial.
DTensor Reduced(absl::string_view name, const DTensor& x);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_IMPLICIT_MOVE_H_
