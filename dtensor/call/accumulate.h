#ifndef WEFT_DTENSOR_CALL_ACCUMULATE_H_
#define WEFT_DTENSOR_CALL_ACCUMULATE_H_

#include "dtensor/dtensor.h"

namespace weft {

// Adds `term` to `sum` in place, with the bits of Add, where no other handle can see it: `sum` is the only
// handle of the only tensor in its memory, and lies as the result would. Otherwise does nothing and returns
// false.
bool AddInPlace(const DTensor& sum, const DTensor& term);

// One more term of a gradient: `sum` is `term` if it was undefined, otherwise their sum; in place, where
// nobody else holds `sum`. Of two floating dtypes in the wider, f32 of f16 and bf16. Records nothing.
void Accumulate(DTensor& sum, DTensor term);

}  // namespace weft

#endif  // WEFT_DTENSOR_CALL_ACCUMULATE_H_
