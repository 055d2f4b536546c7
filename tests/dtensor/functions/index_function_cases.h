#ifndef WEFT_TESTS_DTENSOR_FUNCTIONS_INDEX_FUNCTION_CASES_H_
#define WEFT_TESTS_DTENSOR_FUNCTIONS_INDEX_FUNCTION_CASES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "dtensor/dtensor.h"

namespace weft {

// A function of x and of another floating operand, s (a second part, or what is scattered), and an index.
struct IndexFunctionCase {
  const char* name;
  Shape x;
  Shape s;            // [0]: none
  Shape index;        // [0]: none
  int64_t limit = 1;  // of an index
  bool distinct = false;
  std::function<DTensor(const DTensor& x, const DTensor& s, const DTensor& index)> call;
  double tolerance = 0;  // of what divides: parts of a sum are divided, each rounded
};

// Functions that reshape, move, select and scatter.
std::vector<IndexFunctionCase> IndexFunctionCases();

}  // namespace weft

#endif  // WEFT_TESTS_DTENSOR_FUNCTIONS_INDEX_FUNCTION_CASES_H_
