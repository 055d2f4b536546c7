#include "ops/cpu/spans/row_view.h"

#include <algorithm>

#include "runtime/tensor/copy.h"

namespace weft {

RowView RowsOf(const Tensor& tensor, KernelContext& context) {
  WEFT_CHECK(tensor.ndim() >= 1, "a scalar has no rows");
  const int last = tensor.ndim() - 1;
  RowView view;
  view.num_columns = tensor.shape()[last];
  view.num_rows = 1;
  for (int dim = 0; dim < last; ++dim) view.num_rows *= tensor.shape()[dim];
  const Shape merged = {view.num_rows, view.num_columns};
  // Kernels over rows load whole vectors, so columns must lie together. Rows may be any stride apart: a slice
  // of the last dim needs no copy.
  const bool dense_columns = tensor.strides()[last] == 1 || view.num_columns <= 1;
  view.tensor = dense_columns && tensor.CanReshape(merged)
                    ? tensor.Reshape(merged)
                    : CloneTensor(tensor, context.allocator).Reshape(merged);
  view.stride = view.tensor.strides()[0];
  return view;
}

Tensor Dense(const Tensor& tensor, KernelContext& context) {
  return tensor.IsContiguous() ? tensor : CloneTensor(tensor, context.allocator);
}

void ParallelForRows(KernelContext& context, int64_t num_rows, int64_t num_columns,
                     absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  constexpr int64_t kElements = 16384;
  context.pool.ParallelFor(num_rows, std::max<int64_t>(1, kElements / std::max<int64_t>(1, num_columns)),
                           body);
}

}  // namespace weft
