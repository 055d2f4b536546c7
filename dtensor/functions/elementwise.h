#ifndef WEFT_DTENSOR_FUNCTIONS_ELEMENTWISE_H_
#define WEFT_DTENSOR_FUNCTIONS_ELEMENTWISE_H_

#include "dtensor/dtensor.h"

// Functions of one element of each operand.
//
// Layout: every dim may be split. A Partial sum stays one through what is linear: Add and Sub of two such, Mul with a factor
//         that is not Partial, Div by a divisor that is not, Scale, Neg, Cast. Elsewhere it is reduced first.
// Cost:   no communication where operands lie alike; else the implicit redistribution that brings them together.
// Errors: InvalidArgument for operands of different dtypes, shapes that do not broadcast, and dtypes that the function does not
//         take (ops/elementwise).
namespace weft {

// Arithmetic, with NumPy broadcasting.
DTensor Add(const DTensor& a, const DTensor& b);
DTensor Sub(const DTensor& a, const DTensor& b);
DTensor Mul(const DTensor& a, const DTensor& b);
DTensor Div(const DTensor& a, const DTensor& b);
inline DTensor operator+(const DTensor& a, const DTensor& b) { return Add(a, b); }
inline DTensor operator-(const DTensor& a, const DTensor& b) { return Sub(a, b); }
inline DTensor operator*(const DTensor& a, const DTensor& b) { return Mul(a, b); }
inline DTensor operator/(const DTensor& a, const DTensor& b) { return Div(a, b); }

// The same with a number, which stays one: no tensor is made of it. The dtype stays x's, so integers take
// whole numbers alone, and do not divide.
// Layout: x Partial is reduced first, but by a factor and by a divisor.
// Errors: InvalidArgument for integers with a number that is not whole.
DTensor Add(const DTensor& x, double number);
DTensor Sub(const DTensor& x, double number);
DTensor Sub(double number, const DTensor& x);
DTensor Scale(const DTensor& x, double factor);
DTensor Div(const DTensor& x, double number);
DTensor Div(double number, const DTensor& x);
inline DTensor operator+(const DTensor& x, double number) { return Add(x, number); }
inline DTensor operator+(double number, const DTensor& x) { return Add(x, number); }
inline DTensor operator-(const DTensor& x, double number) { return Sub(x, number); }
inline DTensor operator-(double number, const DTensor& x) { return Sub(number, x); }
inline DTensor operator*(const DTensor& x, double factor) { return Scale(x, factor); }
inline DTensor operator*(double factor, const DTensor& x) { return Scale(x, factor); }
inline DTensor operator/(const DTensor& x, double number) { return Div(x, number); }
inline DTensor operator/(double number, const DTensor& x) { return Div(number, x); }

// Powers, with broadcasting: see ops/elementwise/power.h for integers and gradients.
// Errors: InvalidArgument for integers to a number that is negative or not whole.
DTensor Pow(const DTensor& base, const DTensor& exponent);
DTensor Pow(const DTensor& base, double exponent);
DTensor Pow(double base, const DTensor& exponent);

// Of every element.
DTensor Neg(const DTensor& x);
inline DTensor operator-(const DTensor& x) { return Neg(x); }
DTensor Abs(const DTensor& x);
DTensor Sign(const DTensor& x);  // carries no gradient
DTensor Exp(const DTensor& x);
DTensor Log(const DTensor& x);
DTensor Sqrt(const DTensor& x);
DTensor Rsqrt(const DTensor& x);  // 1 / sqrt(x)
DTensor Square(const DTensor& x);
DTensor Sin(const DTensor& x);
DTensor Cos(const DTensor& x);
DTensor Erf(const DTensor& x);
DTensor Tanh(const DTensor& x);
DTensor Sigmoid(const DTensor& x);

// x in another floating dtype, rounded to nearest; x itself where it has that dtype.
// Cost:   where x is Partial and the dtype does not keep its terms (KeepsTerms, ops/elementwise/cast.h), its all-reduce first:
//         integers add up to what wraps, which floats do not, and terms may be infinite in f16 whose sum is an ordinary number.
// Errors: InvalidArgument for a dtype that is not floating.
DTensor Cast(const DTensor& x, DType dtype);
// x in any dtype. To a floating one it is Cast, with its gradient; others carry none. Floats go to integers toward zero, cut to
// their range, nan to 0; integers to integers modulo 2^bits; whatever is not 0, nan too, is true.
// Layout: to integers and bools, x Partial is reduced first.
DTensor Convert(const DTensor& x, DType dtype);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_ELEMENTWISE_H_
