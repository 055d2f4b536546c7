#ifndef WEFT_DTENSOR_FUNCTIONS_VALUES_TEXT_H_
#define WEFT_DTENSOR_FUNCTIONS_VALUES_TEXT_H_

#include <cstdint>
#include <string>

#include "dtensor/dtensor.h"

// The values of a tensor as text.
namespace weft {

struct ValuesTextOptions {
  int64_t most = 1000;  // a tensor of more elements shows the first and last of each dim alone
  int64_t edge = 3;     // so many of either
  int precision = 4;    // significant digits of floating numbers
};

// What a tensor is, then its values, whatever its layout; the same on every rank, which all call it:
//
//   f32[2, 3] [dp, -]
//   [[   1, -0.5, 0],
//    [1e+04,   2, 3]]
//
// Cost:   gathers what is shown, and no more: of a large tensor, however it is split, one all-reduce of a few elements per dim,
//         and one more of a Partial's terms. Under purpose `metric`.
// Errors: InvalidArgument for options below 1.
std::string ValuesText(const DTensor& x, const ValuesTextOptions& options = {});

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_VALUES_TEXT_H_
