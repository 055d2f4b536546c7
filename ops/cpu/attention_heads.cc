#include "ops/cpu/attention_heads.h"

#include "ops/cpu/parallel_copy.h"

namespace weft {

AttentionExtents AttentionExtents::Of(const Tensor& q, const Tensor& k) {
  const Shape& keys = k.shape();
  AttentionExtents extents = {
      .b = keys[0], .s = q.shape()[1], .t = keys[1], .h = keys[2], .g = 1, .e = keys[3]};
  if (q.ndim() == 5) {
    extents.g = q.shape()[3];
  } else if (extents.h > 0) {
    extents.g = q.shape()[2] / extents.h;
  }
  return extents;
}

DType AttentionDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

Tensor AsHeads(KernelContext& context, const Tensor& tensor, DType dtype) {
  const int last = tensor.ndim() - 1;
  const int64_t e = tensor.shape()[last];
  const bool contiguous = e == 1 || tensor.strides()[last] == 1;
  const bool separate = tensor.shape()[1] <= 1 || tensor.strides()[1] >= e;
  if (tensor.dtype() == dtype && contiguous && separate) return tensor;
  const Tensor copy = Tensor::Empty(context.allocator, dtype, tensor.shape());
  ParallelCopy(context.pool, tensor, copy);
  return copy;
}

}  // namespace weft
