#ifndef WEFT_OPS_DECLARE_DIM_FACTORS_H_
#define WEFT_OPS_DECLARE_DIM_FACTORS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// The factors of a value of `ndim` dims by the rules of ops that treat one dim apart: f0, f1, ... by dim, and
// `factor` for dim `dim`. DimFactors(3, 1, "s!") is "f0 s! f2".
std::string DimFactors(int ndim, int dim, absl::string_view factor);

// The same without dim `dim`: "f0 f2"; "()" if none is left. Names are those of the other dims in DimFactors.
std::string OtherFactors(int ndim, int dim);

}  // namespace weft

#endif  // WEFT_OPS_DECLARE_DIM_FACTORS_H_
