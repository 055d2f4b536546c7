#ifndef WEFT_DTENSOR_FUNCTIONS_ELEMENTWISE_H_
#define WEFT_DTENSOR_FUNCTIONS_ELEMENTWISE_H_

#include "dtensor/dtensor.h"

// Functions of one element of each operand.
namespace weft {

// Arithmetic, with NumPy broadcasting.
DTensor Add(const DTensor& a, const DTensor& b);
DTensor Sub(const DTensor& a, const DTensor& b);
DTensor Mul(const DTensor& a, const DTensor& b);
DTensor Div(const DTensor& a, const DTensor& b);
DTensor Scale(const DTensor& x, double factor);
inline DTensor operator+(const DTensor& a, const DTensor& b) { return Add(a, b); }
inline DTensor operator-(const DTensor& a, const DTensor& b) { return Sub(a, b); }
inline DTensor operator*(const DTensor& a, const DTensor& b) { return Mul(a, b); }
inline DTensor operator/(const DTensor& a, const DTensor& b) { return Div(a, b); }
inline DTensor operator*(const DTensor& x, double factor) { return Scale(x, factor); }
inline DTensor operator*(double factor, const DTensor& x) { return Scale(x, factor); }

// Elementwise.
DTensor Exp(const DTensor& x);
DTensor Log(const DTensor& x);
DTensor Sqrt(const DTensor& x);
DTensor Square(const DTensor& x);
DTensor Tanh(const DTensor& x);
DTensor Relu(const DTensor& x);
DTensor Silu(const DTensor& x);
DTensor Gelu(const DTensor& x);  // the tanh approximation, as GPT-2
DTensor Cast(const DTensor& x, DType dtype);
// Zeroes each element with probability `rate` and scales the rest by 1 / (1 - rate), while the rank state is
// training; the bits depend on the seed, the step, the module path and how many times the module has asked in
// this forward.
DTensor Dropout(const DTensor& x, double rate);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_ELEMENTWISE_H_
