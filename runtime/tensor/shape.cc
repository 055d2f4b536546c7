#include "runtime/tensor/shape.h"

#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace weft {

std::string Shape::ToString() const { return absl::StrCat("[", absl::StrJoin(dims(), ", "), "]"); }

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.ToString(); }

Shape ContiguousStrides(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= shape[dim];
  }
  return strides;
}

int NormalizeDim(int dim, int ndim, absl::string_view what) {
  WEFT_REQUIRE(dim >= -ndim && dim < ndim, what, ": dim ", dim, " is out of range for a tensor of ", ndim,
               " dims");
  return dim < 0 ? dim + ndim : dim;
}

}  // namespace weft
