#include "dtensor/functions/reduce.h"

#include "dtensor/dispatch.h"
#include "ops/elementwise/cast.h"
#include "ops/reduce/argmax.h"
#include "ops/reduce/cum_prod.h"
#include "ops/reduce/log_sum_exp.h"
#include "ops/reduce/reduce.h"
#include "ops/reduce/scan.h"
#include "ops/reduce/variance.h"
#include "ops/reduce/vector_norm.h"

namespace weft {
namespace {

DimMask MaskOf(const std::vector<int>& dims, int ndim, absl::string_view what) {
  if (dims.empty()) return AllDims(ndim);
  DimMask mask = 0;
  for (int dim : dims) mask |= DimMask{1} << NormalizeDim(dim, ndim, what);
  return mask;
}

DTensor Reduce(const Op<ReduceAttributes>& op, const DTensor& x, const std::vector<int>& dims, bool keep_dims,
               absl::string_view what) {
  return Call(op, {x}, {.dims = MaskOf(dims, x.ndim(), what), .keepdims = keep_dims});
}

DTensor ToBool(const DTensor& x) {
  return x.dtype() == DType::kBool ? x : Call(kConvert, {x.Detach()}, {.dtype = DType::kBool});
}

DTensor Vary(const Op<VarianceAttributes>& op, const DTensor& x, const std::vector<int>& dims,
             const VarianceOptions& options, absl::string_view what) {
  return Call(op, {x},
              {.dims = MaskOf(dims, x.ndim(), what),
               .keepdims = options.keep_dims,
               .correction = options.correction});
}

}  // namespace

DTensor Sum(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Reduce(kSum, x, dims, keep_dims, "Sum");
}

DTensor Mean(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Reduce(kMean, x, dims, keep_dims, "Mean");
}

DTensor Max(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Reduce(kReduceMax, x, dims, keep_dims, "Max");
}

DTensor Min(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Reduce(kReduceMin, x, dims, keep_dims, "Min");
}

DTensor Prod(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Reduce(kProd, x, dims, keep_dims, "Prod");
}

DTensor Any(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Reduce(kReduceMax, ToBool(x), dims, keep_dims, "Any");
}

DTensor All(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Reduce(kReduceMin, ToBool(x), dims, keep_dims, "All");
}

DTensor Argmax(const DTensor& x, int dim, bool keep_dim) {
  return Call(kArgMax, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Argmax"), .keepdims = keep_dim});
}

DTensor Argmin(const DTensor& x, int dim, bool keep_dim) {
  return Call(kArgMin, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Argmin"), .keepdims = keep_dim});
}

DTensor Var(const DTensor& x, const std::vector<int>& dims, const VarianceOptions& options) {
  return Vary(kVariance, x, dims, options, "Var");
}

DTensor Std(const DTensor& x, const std::vector<int>& dims, const VarianceOptions& options) {
  return Vary(kStd, x, dims, options, "Std");
}

DTensor Norm(const DTensor& x, double p, const std::vector<int>& dims, bool keep_dims) {
  return Call(kVectorNorm, {x}, {.dims = MaskOf(dims, x.ndim(), "Norm"), .keepdims = keep_dims, .p = p});
}

DTensor LogSumExp(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Reduce(kLogSumExp, x, dims, keep_dims, "LogSumExp");
}

DTensor CumSum(const DTensor& x, int dim) {
  return Call(kCumSum, {x}, {.dim = NormalizeDim(dim, x.ndim(), "CumSum")});
}

DTensor CumProd(const DTensor& x, int dim) {
  return Call(kCumProd, {x}, {.dim = NormalizeDim(dim, x.ndim(), "CumProd")});
}

}  // namespace weft
