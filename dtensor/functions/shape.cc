#include "dtensor/functions/shape.h"

#include <numeric>

#include "dtensor/dispatch.h"
#include "ops/concat.h"
#include "ops/permute.h"
#include "ops/reshape.h"
#include "ops/slice.h"
#include "ops/stack.h"

namespace weft {

DTensor Reshape(const DTensor& x, const Shape& shape) { return Call(kReshape, {x}, {.shape = shape}); }

DTensor Permute(const DTensor& x, const std::vector<int>& order) {
  PermuteAttributes attributes;
  for (int dim : order) attributes.order.push_back(NormalizeDim(dim, x.ndim(), "Permute"));
  return Call(kPermute, {x}, attributes);
}

DTensor Transpose(const DTensor& x, int dim_a, int dim_b) {
  std::vector<int> order(x.ndim());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[NormalizeDim(dim_a, x.ndim(), "Transpose")],
            order[NormalizeDim(dim_b, x.ndim(), "Transpose")]);
  return Permute(x, order);
}

DTensor Slice(const DTensor& x, int dim, int64_t start, int64_t length) {
  return Call(kSlice, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Slice"), .start = start, .length = length});
}

DTensor Concat(const std::vector<DTensor>& parts, int dim) {
  WEFT_REQUIRE(!parts.empty(), "Concat: expected at least one tensor");
  return CallAll(kConcat, parts, {.dim = NormalizeDim(dim, parts[0].ndim(), "Concat")})[0];
}

DTensor Stack(const std::vector<DTensor>& parts, int dim) {
  WEFT_REQUIRE(!parts.empty(), "Stack: expected at least one tensor");
  return CallAll(kStack, parts, {.dim = NormalizeDim(dim, parts[0].ndim() + 1, "Stack")})[0];
}

std::vector<DTensor> Unbind(const DTensor& x, int dim) {
  const DTensors parts = CallAll(kUnbind, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Unbind")});
  return {parts.begin(), parts.end()};
}

}  // namespace weft
