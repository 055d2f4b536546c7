#include "ops/declare/reduced_dims.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/error.h"

namespace weft {

std::string FactorName(int dim) { return absl::StrCat("f", dim); }

std::string DimsText(const std::vector<std::string>& factors) {
  return factors.empty() ? "()" : absl::StrJoin(factors, " ");
}

std::string AllFactors(int ndim, DimMask whole) {
  std::vector<std::string> factors;
  for (int dim = 0; dim < ndim; ++dim)
    factors.push_back(absl::StrCat("f", dim, HasDim(whole, dim) ? "!" : ""));
  return DimsText(factors);
}

std::string KeptFactors(int ndim, const ReduceAttributes& attributes) {
  std::vector<std::string> factors;
  for (int dim = 0; dim < ndim; ++dim) {
    if (!HasDim(attributes.dims, dim)) {
      factors.push_back(absl::StrCat("f", dim));
    } else if (attributes.keepdims) {
      factors.push_back("1");
    }
  }
  return DimsText(factors);
}

TensorType ReducedType(absl::string_view op, const TensorType& x, const ReduceAttributes& attributes) {
  WEFT_REQUIRE(attributes.dims <= AllDims(x.ndim()), op, ": dims name one outside ", x.ToString());
  TensorType result = {x.dtype, {}};
  for (int dim = 0; dim < x.ndim(); ++dim) {
    if (!HasDim(attributes.dims, dim)) {
      result.shape.push_back(x.shape[dim]);
    } else if (attributes.keepdims) {
      result.shape.push_back(1);
    }
  }
  return result;
}

void RequireNumeric(absl::string_view op, const TensorType& x, bool floating) {
  const bool is_integer = x.dtype == DType::kI32 || x.dtype == DType::kI64;
  WEFT_REQUIRE(IsFloating(x.dtype) || (!floating && is_integer), op, ": expected a ",
               floating ? "floating" : "floating, i32 or i64", " dtype, got ", x.ToString());
}

int64_t ReducedCount(const Shape& shape, DimMask dims) {
  int64_t count = 1;
  for (int dim = 0; dim < shape.ndim(); ++dim) {
    if (HasDim(dims, dim)) count *= shape[dim];
  }
  return count;
}

}  // namespace weft
