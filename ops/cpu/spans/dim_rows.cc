#include "ops/cpu/spans/dim_rows.h"

#include <optional>

#include "absl/container/inlined_vector.h"
#include "ops/declare/reduced_dims.h"
#include "runtime/tensor/copy.h"

namespace weft {

int64_t DimRows::Offset(int64_t row) const {
  int64_t offset = 0;
  for (int dim = num_other_dims - 1; dim >= 0; --dim) {
    const int64_t extent = tensor.shape()[dim];
    offset += row % extent * tensor.strides()[dim];
    row /= extent;
  }
  return offset;
}

DimRows RowsAlong(const Tensor& tensor, DimMask dims, KernelContext& context) {
  absl::InlinedVector<int, Shape::kMaxDims> order;
  for (int dim = 0; dim < tensor.ndim(); ++dim) {
    if (!HasDim(dims, dim)) order.push_back(dim);
  }
  DimRows rows;
  rows.num_other_dims = static_cast<int>(order.size());
  for (int dim = 0; dim < tensor.ndim(); ++dim) {
    if (HasDim(dims, dim)) order.push_back(dim);
  }
  rows.tensor = tensor.Permute(order);
  std::optional<int64_t> next;  // what the dim outside must step by, for one stride to reach it
  bool one_stride = true;
  for (int dim = tensor.ndim() - 1; dim >= 0; --dim) {
    const int64_t extent = rows.tensor.shape()[dim];
    if (dim < rows.num_other_dims) {
      rows.num_rows *= extent;
      continue;
    }
    rows.num_columns *= extent;
    if (extent == 1) continue;
    const int64_t stride = rows.tensor.strides()[dim];
    if (!next.has_value()) rows.column_stride = stride;
    one_stride = one_stride && (!next.has_value() || stride == *next);
    next = stride * extent;
  }
  // Empty tensors have no strides to speak of; nothing reads them.
  if (!one_stride && tensor.num_elements() > 0) {
    rows.tensor = CloneTensor(rows.tensor, context.allocator);
    rows.column_stride = 1;
  }
  return rows;
}

void ParallelForDimRows(KernelContext& context, int64_t num_rows, int64_t num_columns,
                        absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  // Some 16K elements, but as many rows as a DimRowTile takes where they are not too long.
  // A task has at least a tile's rows: with fewer, the cache lines that neighbouring rows share would be read
  // once per task.
  const int64_t columns = std::max<int64_t>(1, num_columns);
  const int64_t tile = std::clamp<int64_t>(DimRowTile::kElements / columns, 1, DimRowTile::kRows);
  context.pool.ParallelFor(num_rows, std::max(tile, 16384 / columns), body);
}

Tensor WithMissingDims(const Tensor& x, int ndim, DimMask missing) {
  Shape shape;
  for (int dim = 0, x_dim = 0; dim < ndim; ++dim) {
    shape.push_back(HasDim(missing, dim) ? 1 : x.shape()[x_dim++]);
  }
  return x.Reshape(shape);
}

}  // namespace weft
