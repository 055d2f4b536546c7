#include "dtensor/functions/reduce.h"

#include "dtensor/dispatch.h"
#include "ops/reduce.h"

namespace weft {
namespace {

DimMask MaskOf(const std::vector<int>& dims, int ndim, absl::string_view what) {
  if (dims.empty()) return AllDims(ndim);
  DimMask mask = 0;
  for (int dim : dims) mask |= DimMask{1} << NormalizeDim(dim, ndim, what);
  return mask;
}

}  // namespace

DTensor Sum(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Call(kSum, {x}, {.dims = MaskOf(dims, x.ndim(), "Sum"), .keepdims = keep_dims});
}

DTensor Mean(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Call(kMean, {x}, {.dims = MaskOf(dims, x.ndim(), "Mean"), .keepdims = keep_dims});
}

}  // namespace weft
