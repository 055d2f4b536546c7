#include "ops/cpu/spans/indices.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"

namespace weft {

Tensor DenseIndices(const Tensor& tensor, KernelContext& context) {
  return tensor.dtype() == DType::kI64 && tensor.IsContiguous()
             ? tensor
             : CastTensor(tensor, DType::kI64, context.allocator);
}

std::string GlobalPosition(const ShardBox& box, int64_t i) {
  Shape position = box.shape;
  for (int dim = box.shape.ndim() - 1; dim >= 0; --dim) {
    position[dim] = box.offset[dim] + i % box.shape[dim];
    i /= box.shape[dim];
  }
  return position.ToString();
}

void CheckIndices(absl::string_view op, absl::string_view noun, const Tensor& indices, const ShardBox& box,
                  int64_t limit, std::optional<int64_t> ignored) {
  // All of them before any is used: a call that fails has written nothing. The first bad one is named, in
  // every run the same.
  const int64_t* values = indices.data<int64_t>();
  for (int64_t i = 0; i < indices.num_elements(); ++i) {
    const int64_t value = values[i];
    if ((value >= 0 && value < limit) || value == ignored) continue;
    ThrowInvalidArgument(op, ": ", noun, " ", value, " at ", GlobalPosition(box, i), " is outside [0, ",
                         limit, ")", ignored ? absl::StrCat(" and is not ignore_index ", *ignored) : "");
  }
}

}  // namespace weft
