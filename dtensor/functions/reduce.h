#ifndef WEFT_DTENSOR_FUNCTIONS_REDUCE_H_
#define WEFT_DTENSOR_FUNCTIONS_REDUCE_H_

#include <vector>

#include "dtensor/dtensor.h"

// Reductions over `dims` (negative from the end; none listed: all), and what else walks along a dim.
//
// Layout: nothing is gathered along a split dim. Sum, Mean, Max, Min, Prod, Any and All leave a Partial; the
//         others all-reduce one or two numbers for each result (Argmax, Var, Std, VarMean, Norm, LogSumExp), or
//         gather one for each result and piece (CumSum, CumProd). Only the gradient of CumProd gathers the dim.
// Dtypes: results keep the operand's, unless said; the ops' headers have the rest (ops/reduce/reduce.h,
//         argmax.h, variance.h, vector_norm.h, log_sum_exp.h, scan.h, cum_prod.h). All but Any, All, Argmax
//         and Argmin are differentiable.
// Cost:   where a reduced dim is split, the collectives that Layout names, of the results' size; else none.
// Errors: InvalidArgument for a dim outside x, a dtype that the function does not take, and an extremum over an empty dim but for
//         bools.
namespace weft {

DTensor Sum(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);
DTensor Mean(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);
// NaN wins; the gradient goes in equal parts to the elements that are the extremum.
DTensor Max(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);
DTensor Min(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);
DTensor Prod(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);

// bool: whether any or all elements are not 0 (NaN is not). Of none: false and true.
DTensor Any(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);
DTensor All(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);

// i64: where the extremum stands, the lowest of several; a NaN counts as both.
DTensor Argmax(const DTensor& x, int dim, bool keep_dim = false);
DTensor Argmin(const DTensor& x, int dim, bool keep_dim = false);

// The mean square difference from the mean, with N - correction as the divisor, and its square root.
struct VarianceOptions {
  double correction = 1;
  bool keep_dims = false;
};
DTensor Var(const DTensor& x, const std::vector<int>& dims = {}, const VarianceOptions& options = {});
DTensor Std(const DTensor& x, const std::vector<int>& dims = {}, const VarianceOptions& options = {});
// What Var and Mean give, for the price of Var: it needs the mean anyway.
struct VarianceAndMean {
  DTensor variance;
  DTensor mean;
};
VarianceAndMean VarMean(const DTensor& x, const std::vector<int>& dims = {},
                        const VarianceOptions& options = {});

// (sum |x|^p)^(1 / p); inf, -inf and 0 as in PyTorch's vector_norm.
DTensor Norm(const DTensor& x, double p = 2, const std::vector<int>& dims = {}, bool keep_dims = false);
DTensor LogSumExp(const DTensor& x, const std::vector<int>& dims = {}, bool keep_dims = false);

// y_i = x_0 + ... + x_i.
DTensor CumSum(const DTensor& x, int dim);
// y_i = x_0 * ... * x_i.
DTensor CumProd(const DTensor& x, int dim);

}  // namespace weft

#endif  // WEFT_DTENSOR_FUNCTIONS_REDUCE_H_
