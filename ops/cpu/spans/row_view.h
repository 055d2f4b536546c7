#ifndef WEFT_OPS_CPU_SPANS_ROW_VIEW_H_
#define WEFT_OPS_CPU_SPANS_ROW_VIEW_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "ops/cpu/spans/compute_type.h"
#include "ops/op/kernel_call.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// A tensor as rows: its leading dims merged, its last dim dense. A handle, as Tensor is.
struct RowView {
  Tensor tensor;  // [num_rows, num_columns], stride 1 along the columns
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  int64_t stride = 0;  // between rows, in elements
};

// Cost: none where the strides allow it (row-major tensors, slices of their last dim), else one copy.
RowView RowsOf(const Tensor& tensor, KernelContext& context);

// `tensor` itself where it is row-major, else a copy that is.
Tensor Dense(const Tensor& tensor, KernelContext& context);

// Cuts rows into blocks of some 16K elements, by the shape alone, and runs them on the pool.
void ParallelForRows(KernelContext& context, int64_t num_rows, int64_t num_columns,
                     absl::FunctionRef<void(int64_t begin, int64_t end)> body);

// Rows of T, one below the other.
template <class T>
struct TypedRows {
  T* data = nullptr;
  int64_t stride = 0;  // in elements

  T* operator[](int64_t row) const { return data + row * stride; }
};

// The rows of a view, for reading; those of a row-major tensor of `num_columns`, for writing. Borrow them.
template <class T>
TypedRows<const T> ReadRows(const RowView& view) {
  return {view.tensor.data<T>(), view.stride};
}
template <class T>
TypedRows<T> WriteRows(const Tensor& tensor, int64_t num_columns) {
  return {tensor.data<T>(), num_columns};
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_ROW_VIEW_H_
