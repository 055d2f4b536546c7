#ifndef WEFT_RUNTIME_TENSOR_TENSOR_H_
#define WEFT_RUNTIME_TENSOR_TENSOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "runtime/base/dtype.h"
#include "runtime/base/error.h"
#include "runtime/tensor/buffer.h"
#include "runtime/tensor/shape.h"

namespace weft {

// A strided array in the memory of one device: what kernels and communicators see. Knows nothing of ranks.
//
// A handle: it shares its Buffer with every view of it, copying it copies no elements, and writing through
// one handle is seen by all. A default-constructed Tensor is undefined. Strides are in elements and not
// negative. There is no `==`: compare elements with tests/.../matchers or ToVector.
class Tensor {
 public:
  Tensor() = default;

  // A new row-major tensor, uninitialised.
  // Errors: InvalidArgument for a negative extent; ResourceExhausted.
  static Tensor Empty(const std::shared_ptr<Allocator>& allocator, DType dtype, const Shape& shape);

  // A new row-major tensor of `values`, on the CPU from an allocator of its own unless one is given.
  // Errors: InvalidArgument if the number of values is not the shape's.
  template <class T>
  static Tensor FromValues(const Shape& shape, absl::Span<const T> values,
                           std::shared_ptr<Allocator> allocator = nullptr);

  // All of a buffer, as u8 in a row.
  static Tensor BytesOf(const IntrusivePtr<Buffer>& buffer);
  // The same view of another buffer, of as many bytes.
  Tensor On(IntrusivePtr<Buffer> buffer) const {
    return Tensor(std::move(buffer), dtype_, shape_, strides_, offset_);
  }

  bool defined() const { return static_cast<bool>(buffer_); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  int ndim() const { return shape_.ndim(); }
  int64_t num_elements() const { return shape_.num_elements(); }
  int64_t num_bytes() const { return num_elements() * ItemSize(dtype_); }
  Device device() const { return buffer_->device(); }
  const IntrusivePtr<Buffer>& buffer() const { return buffer_; }

  // The first element. Null for meta tensors.
  void* data() const {
    char* const base = static_cast<char*>(buffer_->data());
    return base == nullptr ? nullptr : base + offset_ * ItemSize(dtype_);
  }

  // The same, typed.
  // Errors: Internal if T is not the dtype's C++ type (a kernel's defect).
  template <class T>
  T* data() const {
    WEFT_CHECK(kDTypeOf<T> == dtype_, "tensor is ", DTypeName(dtype_), ", read as ", DTypeName(kDTypeOf<T>));
    return static_cast<T*>(data());
  }

  // True if the elements lie row-major without gaps; extents of 1 and empty tensors do not matter.
  bool IsContiguous() const;

  // Views: no element moves.
  // Errors: InvalidArgument for dims or ranges outside the tensor.
  Tensor Slice(int dim, int64_t start, int64_t length) const;
  Tensor Select(int dim, int64_t index) const;        // drops `dim`
  Tensor Permute(absl::Span<const int> order) const;  // dim i of the result is dim order[i]
  Tensor Transpose(int dim_a, int dim_b) const;       // swaps two dims
  Tensor Expand(const Shape& shape) const;  // repeats dims of extent 1 (stride 0), adds leading dims
  // The same elements, row-major, under another shape of as many elements.
  // Errors: InvalidArgument if the strides do not allow it without a copy (CanReshape is false).
  Tensor Reshape(const Shape& shape) const;
  bool CanReshape(const Shape& shape) const;

  // "f32[2, 3]".
  std::string TypeString() const;

  // Row-major elements, converted to T. For tests and small results.
  // Cost:   on a device, waits for what computes them.
  // Errors: InvalidArgument on meta.
  template <class T>
  std::vector<T> ToVector() const;

 private:
  Tensor(IntrusivePtr<Buffer> buffer, DType dtype, const Shape& shape, const Shape& strides, int64_t offset)
      : buffer_(std::move(buffer)), shape_(shape), strides_(strides), offset_(offset), dtype_(dtype) {}

  IntrusivePtr<Buffer> buffer_;
  Shape shape_;
  Shape strides_;
  int64_t offset_ = 0;
  DType dtype_ = DType::kF32;
};

// "f32[2, 3]": how a tensor's type is written everywhere.
std::string TypeString(DType dtype, const Shape& shape);

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_TENSOR_H_
