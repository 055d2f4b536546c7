#ifndef WEFT_DTENSOR_FUNCTIONS_COMPARE_H_
#define WEFT_DTENSOR_FUNCTIONS_COMPARE_H_

#include "dtensor/dtensor.h"

// Questions about every element: the answers are bool tensors, and carry no gradient.
//
// Layout: every dim may be split; a Partial operand is reduced first.
// Cost:   no communication where operands lie alike and are not Partial.
// Errors: InvalidArgument for operands of different dtypes, shapes that do not broadcast, a number that x's dtype does not hold.
namespace weft {

// Operands of one dtype, with NumPy broadcasting; a number is compared as x's dtype, which must hold it.
// NaN is unequal to everything and neither less nor greater.
DTensor Equal(const DTensor& a, const DTensor& b);
DTensor NotEqual(const DTensor& a, const DTensor& b);
DTensor Less(const DTensor& a, const DTensor& b);
DTensor LessEqual(const DTensor& a, const DTensor& b);
DTensor Greater(const DTensor& a, const DTensor& b);
DTensor GreaterEqual(const DTensor& a, const DTensor& b);
DTensor Equal(const DTensor& x, double number);
DTensor NotEqual(const DTensor& x, double number);
DTensor Less(const DTensor& x, double number);
DTensor LessEqual(const DTensor& x, double number);
DTensor Greater(const DTensor& x, double number);
DTensor GreaterEqual(const DTensor& x, double number);

// Of floating x.
// Errors: InvalidArgument for another dtype.
DTensor IsNan(const DTensor& x);
DTensor IsFinite(const DTensor& x);

// Logic of bool tensors, with broadcasting.
// Errors: InvalidArgument for another dtype: compare with 0 first.
DTensor LogicalAnd(const DTensor& a, const DTensor& b);
DTensor LogicalOr(const DTensor& a, const DTensor& b);
DTensor LogicalXor(const DTensor& a, const DTensor& b);
DTensor LogicalNot(const DTensor& x);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_COMPARE_H_
