#ifndef WEFT_TESTS_OPS_TENSOR_COMPARE_H_
#define WEFT_TESTS_OPS_TENSOR_COMPARE_H_

#include "gtest/gtest.h"
#include "runtime/tensor/tensor.h"
#include "tools/rules/tensor_difference.h"  // Tolerance

namespace weft {

// Whether |actual - expected| <= tolerance * max(1, |expected|) for every element; nan equals nan, an
// infinity equals itself. Types must be equal. The failure names the first element that differs and how many
// do.
::testing::AssertionResult AllClose(const Tensor& actual, const Tensor& expected, double tolerance);

// The same bits in every element.
::testing::AssertionResult SameBits(const Tensor& actual, const Tensor& expected);

}  // namespace weft

#endif  // WEFT_TESTS_OPS_TENSOR_COMPARE_H_
