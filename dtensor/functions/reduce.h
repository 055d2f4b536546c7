#ifndef WEFT_DTENSOR_FUNCTIONS_REDUCE_H_
#define WEFT_DTENSOR_FUNCTIONS_REDUCE_H_

#include <vector>

#include "dtensor/dtensor.h"

// Reductions over `dims` (negative from the end; none listed: all).
namespace weft {

DTensor Sum(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);
DTensor Mean(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_REDUCE_H_
