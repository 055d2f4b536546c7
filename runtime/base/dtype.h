#ifndef WEFT_RUNTIME_BASE_DTYPE_H_
#define WEFT_RUNTIME_BASE_DTYPE_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/strings/string_view.h"
#include "runtime/base/error.h"
#include "runtime/base/float16.h"

namespace weft {

// The element type of a tensor.
enum class DType : uint8_t { kF32, kF64, kBF16, kF16, kI32, kI64, kU8, kBool };

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                                       DType::kI32, DType::kI64, DType::kU8,   DType::kBool};

// Bytes of one element.
constexpr int64_t ItemSize(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16 || dtype == DType::kF16;
}

// Of two floating dtypes the wider, f32 of f16 and bf16; otherwise `a`.
constexpr DType WiderOf(DType a, DType b) {
  if (a == b || !IsFloating(a) || !IsFloating(b) || ItemSize(a) > ItemSize(b)) return a;
  return ItemSize(a) < ItemSize(b) ? b : DType::kF32;
}

// "f32", "f64", "bf16", "f16", "i32", "i64", "u8", "bool": the text form in errors, logs and files.
absl::string_view DTypeName(DType dtype);

// The inverse of DTypeName.
// Errors: InvalidArgument that lists the names.
DType ParseDType(absl::string_view name);

std::ostream& operator<<(std::ostream& out, DType dtype);

namespace internal {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::kF32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::kF64> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::kBF16> {};
template <>
struct DTypeOf<Float16> : std::integral_constant<DType, DType::kF16> {};
template <>
struct DTypeOf<int32_t> : std::integral_constant<DType, DType::kI32> {};
template <>
struct DTypeOf<int64_t> : std::integral_constant<DType, DType::kI64> {};
template <>
struct DTypeOf<uint8_t> : std::integral_constant<DType, DType::kU8> {};
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::kBool> {};
}  // namespace internal

// The dtype whose elements are of C++ type T.
template <class T>
inline constexpr DType kDTypeOf = internal::DTypeOf<T>::value;

// Names a type as a value, so that a generic lambda can receive it.
template <class T>
struct TypeTag {
  using type = T;
};

// Calls `function(TypeTag<T>())` with the C++ type of `dtype` and returns its result:
//   VisitDType(dtype, [&](auto tag) { using T = typename decltype(tag)::type; ... });
template <class Function>
decltype(auto) VisitDType(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::kF32:
      return function(TypeTag<float>());
    case DType::kF64:
      return function(TypeTag<double>());
    case DType::kBF16:
      return function(TypeTag<BFloat16>());
    case DType::kF16:
      return function(TypeTag<Float16>());
    case DType::kI32:
      return function(TypeTag<int32_t>());
    case DType::kI64:
      return function(TypeTag<int64_t>());
    case DType::kU8:
      return function(TypeTag<uint8_t>());
    case DType::kBool:
      break;
  }
  return function(TypeTag<bool>());
}

// The same for the floating types alone; `what` names the caller in the error.
// Errors: InvalidArgument for another dtype.
template <class Function>
decltype(auto) VisitFloating(DType dtype, absl::string_view what, Function&& function) {
  switch (dtype) {
    case DType::kF32:
      return function(TypeTag<float>());
    case DType::kF64:
      return function(TypeTag<double>());
    case DType::kBF16:
      return function(TypeTag<BFloat16>());
    case DType::kF16:
      return function(TypeTag<Float16>());
    default:
      ThrowInvalidArgument(what, ": expected a floating dtype (f32, f64, bf16, f16), got ", DTypeName(dtype));
  }
}

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_DTYPE_H_
