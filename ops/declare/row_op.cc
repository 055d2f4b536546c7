#include "ops/declare/row_op.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {

std::string RowFactors(int ndim, absl::string_view last) {
  std::string text;
  for (int dim = 0; dim + 1 < ndim; ++dim) absl::StrAppend(&text, "f", dim, " ");
  return absl::StrCat(text, last);
}

std::string StatisticFactors(int ndim) {
  if (ndim <= 1) return "()";
  std::string text = RowFactors(ndim, "");
  text.pop_back();
  return text;
}

DType StatisticDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

TensorType StatisticType(const TensorType& rows) {
  TensorType type = {StatisticDType(rows.dtype), rows.shape};
  type.shape.Remove(type.ndim() - 1);
  return type;
}

void RequireRows(absl::string_view op, absl::string_view operand, const TensorType& type) {
  WEFT_REQUIRE(IsFloating(type.dtype) && type.ndim() >= 1, op, ": ", operand,
               " must be floating (f32, f64, bf16, f16) with at least one dim, got ", type.ToString());
}

void RequireType(absl::string_view op, absl::string_view operand, const TensorType& type,
                 const TensorType& expected) {
  WEFT_REQUIRE(type == expected, op, ": ", operand, " must be ", expected.ToString(), ", got ",
               type.ToString());
}

void RequireStatistic(absl::string_view op, absl::string_view operand, const TensorType& type,
                      const TensorType& rows) {
  RequireType(op, operand, type, StatisticType(rows));
}

void RequireVector(absl::string_view op, absl::string_view operand, const TensorType& type,
                   const TensorType& rows) {
  RequireType(op, operand, type, {rows.dtype, Shape({rows.shape[rows.ndim() - 1]})});
}

void RequireNoGradient(absl::string_view op, absl::string_view output, bool defined) {
  if (defined) {
    Throw(absl::StatusCode::kUnimplemented, op, ": a gradient reached output '", output,
          "', which only serves the op's own backward");
  }
}

}  // namespace weft
