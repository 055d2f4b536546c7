#ifndef WEFT_OPS_DECLARE_ROW_OP_H_
#define WEFT_OPS_DECLARE_ROW_OP_H_

#include <string>

#include "absl/strings/string_view.h"
#include "runtime/tensor/tensor_type.h"

namespace weft {

// What ops on rows have in common: norms, softmax and cross-entropy work on the last dim and take the others
// as rows.

// The factors of one operand of `ndim` dims whose last dim is `last`: RowFactors(3, "d!") is "f0 f1 d!".
std::string RowFactors(int ndim, absl::string_view last);
// The factors of one number per row: "f0 f1" for rows of 3 dims, "()" for a single row.
std::string StatisticFactors(int ndim);

// The element type of one number per row: f64 for f64, f32 for the other floating types.
DType StatisticDType(DType dtype);
// The type of one number per row of `rows`.
TensorType StatisticType(const TensorType& rows);

// Errors: InvalidArgument that names the op and the operand unless it is floating and has a last dim, has
//         that very type, or is one number per row.
void RequireRows(absl::string_view op, absl::string_view operand, const TensorType& type);
void RequireType(absl::string_view op, absl::string_view operand, const TensorType& type,
                 const TensorType& expected);
void RequireStatistic(absl::string_view op, absl::string_view operand, const TensorType& type,
                      const TensorType& rows);
// The same for a vector along the last dim of `rows`: a norm's weight.
void RequireVector(absl::string_view op, absl::string_view operand, const TensorType& type,
                   const TensorType& rows);

// Errors: Unimplemented if a gradient reached an output that only serves the op's own backward.
// `defined` is whether it did.
void RequireNoGradient(absl::string_view op, absl::string_view output, bool defined);

}  // namespace weft

#endif  // WEFT_OPS_DECLARE_ROW_OP_H_
