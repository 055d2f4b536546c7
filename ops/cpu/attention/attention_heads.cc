#include "ops/cpu/attention/attention_heads.h"

#include "ops/cpu/spans/parallel_copy.h"

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

HeadTensor::HeadTensor(const Tensor& tensor, const AttentionExtents& extents)
    : data_(static_cast<std::byte*>(tensor.data())),
      dtype_(tensor.dtype()),
      item_size_(ItemSize(tensor.dtype())),
      b_(tensor.strides()[0]),
      row_(tensor.strides()[1]) {
  const bool split = tensor.ndim() == 5;
  const int64_t last = tensor.strides()[split ? 3 : 2];
  // Merged heads are in the order (key head, query head of it): the stride of a key head is that of its whole
  // group. Keys and values have no groups, and every query head of a group reads the same rows.
  const bool has_groups = split || tensor.shape()[2] != extents.h;
  g_ = has_groups ? last : 0;
  h_ = split ? tensor.strides()[2] : has_groups ? last * extents.g : last;
}

Tensor AsHeads(KernelContext& context, const Tensor& tensor) {
  const int last = tensor.ndim() - 1;
  if (tensor.shape()[last] == 1 || tensor.strides()[last] == 1) return tensor;
  return ParallelClone(context.pool, tensor, context.allocator);
}

}  // namespace weft
