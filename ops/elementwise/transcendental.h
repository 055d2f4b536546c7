#ifndef WEFT_OPS_ELEMENTWISE_TRANSCENDENTAL_H_
#define WEFT_OPS_ELEMENTWISE_TRANSCENDENTAL_H_

#include "ops/op/op.h"

namespace weft {

// sin x, cos x, 1 / (1 + e^-x) and erf x, for floating dtypes; NaN gives NaN. erf makes one libm call an
// element, the others run over vectors.
extern const Op<> kSin;
extern const Op<> kCos;
extern const Op<> kSigmoid;
extern const Op<> kErf;

// dy times the derivative, in one pass: of sigmoid from its output (y dy), of erf from its operand (x dy).
extern const Op<> kSigmoidGrad;
extern const Op<> kErfGrad;

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_TRANSCENDENTAL_H_
