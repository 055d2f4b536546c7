#include "dtensor/functions/reduce.h"

#include "absl/strings/str_join.h"
#include "dtensor/dispatch.h"
#include "dtensor/functions/elementwise.h"
#include "dtensor/functions/shape.h"
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
  for (int dim : dims) {
    const DimMask bit = DimMask{1} << NormalizeDim(dim, ndim, what);
    WEFT_REQUIRE((mask & bit) == 0, what, ": dim ", dim, " stands twice in {", absl::StrJoin(dims, ", "),
                 "}");
    mask |= bit;
  }
  return mask;
}

DTensor Reduce(const Op<ReduceAttributes>& op, const DTensor& x, const std::vector<int>& dims, bool keep_dims,
               absl::string_view what) {
  return Call(op, {x}, {.dims = MaskOf(dims, x.ndim(), what), .keepdims = keep_dims});
}

VarianceAttributes AttributesOf(const DTensor& x, const std::vector<int>& dims,
                                const VarianceOptions& options, absl::string_view what) {
  return {
      .dims = MaskOf(dims, x.ndim(), what), .keepdims = options.keep_dims, .correction = options.correction};
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
  return Reduce(kReduceMax, Convert(x, DType::kBool), dims, keep_dims, "Any");
}

DTensor All(const DTensor& x, const std::vector<int>& dims, bool keep_dims) {
  return Reduce(kReduceMin, Convert(x, DType::kBool), dims, keep_dims, "All");
}

DTensor Argmax(const DTensor& x, int dim, bool keep_dim) {
  return Call(kArgMax, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Argmax"), .keepdims = keep_dim});
}

DTensor Argmin(const DTensor& x, int dim, bool keep_dim) {
  return Call(kArgMin, {x}, {.dim = NormalizeDim(dim, x.ndim(), "Argmin"), .keepdims = keep_dim});
}

DTensor Var(const DTensor& x, const std::vector<int>& dims, const VarianceOptions& options) {
  return Call(kVariance, {x}, AttributesOf(x, dims, options, "Var"));
}

DTensor Std(const DTensor& x, const std::vector<int>& dims, const VarianceOptions& options) {
  return Call(kStd, {x}, AttributesOf(x, dims, options, "Std"));
}

VarianceAndMean VarMean(const DTensor& x, const std::vector<int>& dims, const VarianceOptions& options) {
  const DTensors outputs = CallAll(kVariance, {x}, AttributesOf(x, dims, options, "VarMean"));
  // The op's mean keeps the reduced dims, and is f32 of halves.
  const DTensor mean = Cast(outputs[1], x.dtype());
  return {outputs[0], options.keep_dims ? mean : Reshape(mean, outputs[0].shape())};
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
