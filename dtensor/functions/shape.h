#ifndef WEFT_DTENSOR_FUNCTIONS_SHAPE_H_
#define WEFT_DTENSOR_FUNCTIONS_SHAPE_H_

#include <vector>

#include "dtensor/dtensor.h"

// The same elements under another shape, order or extent.
namespace weft {

DTensor Reshape(const DTensor& x, const Shape& shape);
DTensor Permute(const DTensor& x, const std::vector<int>& order);
DTensor Transpose(const DTensor& x, int dim_a, int dim_b);
DTensor Slice(const DTensor& x, int dim, int64_t start, int64_t length);
DTensor Concat(const std::vector<DTensor>& parts, int dim);
DTensor Stack(const std::vector<DTensor>& parts, int dim);
std::vector<DTensor> Unbind(const DTensor& x, int dim);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_SHAPE_H_
