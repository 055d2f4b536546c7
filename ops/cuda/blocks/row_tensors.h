#ifndef WEFT_OPS_CUDA_BLOCKS_ROW_TENSORS_H_
#define WEFT_OPS_CUDA_BLOCKS_ROW_TENSORS_H_

#include <cstdint>

#include "ops/op/kernel_call.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Rows of T in memory, one below the other: what kernels get.
template <class T>
struct DeviceRows {
  T* data = nullptr;
  int64_t stride = 0;  // in elements

  __host__ __device__ T* operator[](int64_t row) const { return data + row * stride; }
};

// Whether all packs (row_pack.h) of these parts are whole and aligned. A part is rows of n elements, or a vector of n, which
// may be null.
template <class T>
bool PacksAreAligned(DeviceRows<T> rows) {
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride * int64_t{sizeof(T)} % 16 == 0;
}
template <class T>
bool PacksAreAligned(const T* vector) {
  return reinterpret_cast<uintptr_t>(vector) % 16 == 0;
}
template <class T, class... Parts>
bool RowsLieInPacks(int64_t n, const Parts&... parts) {
  return n * int64_t{sizeof(T)} % 16 == 0 && (PacksAreAligned(parts) && ...);
}

// A tensor as rows: its leading dims merged, its last dim dense. A handle, as Tensor is.
class RowTensor {
 public:
  // Cost: none where the strides allow it (row-major tensors, slices of their last dim), else one copy.
  RowTensor(const Tensor& tensor, KernelContext& context) {
    WEFT_CHECK(tensor.ndim() >= 1, "a scalar has no rows");
    const int last = tensor.ndim() - 1;
    num_columns_ = tensor.shape()[last];
    for (int dim = 0; dim < last; ++dim) num_rows_ *= tensor.shape()[dim];
    const Shape merged = {num_rows_, num_columns_};
    const bool dense = tensor.strides()[last] == 1 || num_columns_ <= 1;
    const bool in_place = dense && tensor.CanReshape(merged);
    tensor_ = (in_place ? tensor : CloneTensor(tensor, context.allocator)).Reshape(merged);
  }

  int64_t num_rows() const { return num_rows_; }
  int64_t num_columns() const { return num_columns_; }
  template <class T>
  DeviceRows<const T> rows() const {
    return {tensor_.data<T>(), tensor_.strides()[0]};
  }

 private:
  Tensor tensor_;
  int64_t num_rows_ = 1;
  int64_t num_columns_ = 0;
};

// The rows of a row-major tensor of `n` columns, for writing.
template <class T>
DeviceRows<T> OutputRows(const Tensor& tensor, int64_t n) {
  return {tensor.data<T>(), n};
}

// `tensor` itself where it is row-major and of the dtype, else a copy that is.
inline Tensor PackedTensor(const Tensor& tensor, DType dtype, KernelContext& context) {
  return tensor.dtype() == dtype && tensor.IsContiguous() ? tensor
                                                          : CastTensor(tensor, dtype, context.allocator);
}
inline Tensor PackedTensor(const Tensor& tensor, KernelContext& context) {
  return PackedTensor(tensor, tensor.dtype(), context);
}

// Row-major numbers of C that kernels read; absent ones, of an undefined tensor, read as 0.
template <class C>
class PackedNumbers {
 public:
  PackedNumbers(const Tensor& tensor, KernelContext& context) {
    if (tensor.defined()) tensor_ = PackedTensor(tensor, kDTypeOf<C>, context);
  }
  const C* data() const { return tensor_.defined() ? tensor_.data<C>() : nullptr; }

 private:
  Tensor tensor_;
};
template <class C>
__device__ C NumberAt(const C* numbers, int64_t i) {
  return numbers == nullptr ? C(0) : numbers[i];
}
// The elements of a tensor, or null of an undefined one.
template <class C>
C* DataOrNull(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<C>() : nullptr;
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_ROW_TENSORS_H_
