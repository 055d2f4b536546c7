#ifndef WEFT_RUNTIME_TENSOR_TENSOR_TYPE_H_
#define WEFT_RUNTIME_TENSOR_TENSOR_TYPE_H_

#include <ostream>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "runtime/base/dtype.h"
#include "runtime/tensor/shape.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// What inference sees of a tensor: its element type and its global shape.
struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;

  int ndim() const { return shape.ndim(); }
  bool operator==(const TensorType&) const = default;
  std::string ToString() const { return TypeString(dtype, shape); }
  template <class H>
  friend H AbslHashValue(H state, const TensorType& type) {
    return H::combine(std::move(state), type.dtype, type.shape);
  }
};

inline std::ostream& operator<<(std::ostream& out, const TensorType& type) { return out << type.ToString(); }

using TensorTypes = absl::InlinedVector<TensorType, 4>;

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_TENSOR_TYPE_H_
