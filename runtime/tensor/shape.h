#ifndef WEFT_RUNTIME_TENSOR_SHAPE_H_
#define WEFT_RUNTIME_TENSOR_SHAPE_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/base/error.h"

namespace weft {

// Extents of a tensor's dims, outermost first; also used for its strides. A value of at most 8 int64 numbers
// held in place: copying never allocates. A scalar has no dims and one element.
class Shape {
 public:
  static constexpr int kMaxDims = 8;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> dims) { Assign(dims.begin(), dims.end()); }
  explicit Shape(absl::Span<const int64_t> dims) { Assign(dims.begin(), dims.end()); }

  constexpr int ndim() const { return ndim_; }
  constexpr int64_t operator[](int dim) const { return dims_[dim]; }
  constexpr int64_t& operator[](int dim) { return dims_[dim]; }
  absl::Span<const int64_t> dims() const { return absl::MakeConstSpan(dims_.data(), ndim_); }
  constexpr const int64_t* begin() const { return dims_.data(); }
  constexpr const int64_t* end() const { return dims_.data() + ndim_; }

  // Product of the extents; 1 for a scalar, 0 if any extent is 0. A product beyond int64 is its largest number, which no
  // tensor has.
  constexpr int64_t num_elements() const {
    int64_t count = 1;
    for (int64_t extent : *this) {
      if (__builtin_mul_overflow(count, extent, &count)) return CountBeyond();
    }
    return count;
  }

  // Appends one dim, or inserts it before `dim`, or removes `dim`.
  // Errors: InvalidArgument beyond 8 dims or outside the range.
  constexpr void push_back(int64_t extent) { Insert(ndim_, extent); }
  constexpr void Insert(int dim, int64_t extent) {
    WEFT_REQUIRE(ndim_ < kMaxDims, "a tensor has at most ", kMaxDims, " dims");
    WEFT_REQUIRE(dim >= 0 && dim <= ndim_, "cannot insert a dim before dim ", dim, " of ", ndim_);
    for (int i = ndim_; i > dim; --i) dims_[i] = dims_[i - 1];
    dims_[dim] = extent;
    ++ndim_;
  }
  constexpr void Remove(int dim) {
    WEFT_REQUIRE(dim >= 0 && dim < ndim_, "cannot remove dim ", dim, " of ", ndim_);
    for (int i = dim; i + 1 < ndim_; ++i) dims_[i] = dims_[i + 1];
    dims_[--ndim_] = 0;  // unused extents stay 0, so that == and hashing can run over the whole array
  }

  constexpr bool operator==(const Shape&) const = default;
  template <class H>
  friend H AbslHashValue(H state, const Shape& shape) {
    return H::combine(H::combine_contiguous(std::move(state), shape.begin(), shape.ndim()), shape.ndim());
  }

  // "[2, 3]"; "[]" for a scalar.
  std::string ToString() const;

 private:
  constexpr int64_t CountBeyond() const {
    for (int64_t extent : *this) {
      if (extent == 0) return 0;
    }
    return std::numeric_limits<int64_t>::max();
  }
  template <class Iterator>
  constexpr void Assign(Iterator begin, Iterator end) {
    WEFT_REQUIRE(end - begin <= kMaxDims, "a tensor has at most ", kMaxDims, " dims, got ", end - begin);
    for (; begin != end; ++begin) dims_[ndim_++] = *begin;
  }

  std::array<int64_t, kMaxDims> dims_ = {};
  int ndim_ = 0;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

// Strides, in elements, of a row-major tensor of `shape`.
Shape ContiguousStrides(const Shape& shape);

// `dim` counted from the end where negative.
// Errors: InvalidArgument naming `what`, the dim and the range.
int NormalizeDim(int dim, int ndim, absl::string_view what);

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_SHAPE_H_
