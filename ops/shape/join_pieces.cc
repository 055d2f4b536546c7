#include "ops/shape/join_pieces.h"

#include <algorithm>

#include "mesh/shard_math.h"
#include "ops/op/absent.h"
#include "runtime/tensor/copy.h"

namespace weft {

void ConcatPieces(const ConcatAttributes& a, const KernelCallBase& call, CopyFunction copy) {
  const int dim = a.dim;
  const Tensor& y = call.outputs[0];
  const Range here = {call.output_boxes[0].offset[dim], call.output_boxes[0].shape[dim]};
  int64_t start = 0;
  int64_t filled = here.offset;  // pieces come in the order of their places
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const ShardBox& box = call.input_boxes[i];
    const int64_t piece = start + box.offset[dim];
    const int64_t begin = std::max(piece, here.offset);
    const int64_t end = std::min(piece + box.shape[dim], here.offset + here.size);
    start += box.global_shape[dim];
    if (begin >= end) continue;
    FillTensor(y.Slice(dim, filled - here.offset, begin - filled), kAbsent);
    copy(call.inputs[i].Slice(dim, begin - piece, end - begin),
         y.Slice(dim, begin - here.offset, end - begin));
    filled = end;
  }
  FillTensor(y.Slice(dim, filled - here.offset, here.offset + here.size - filled), kAbsent);
}

void StackPieces(const StackAttributes& a, const KernelCallBase& call, CopyFunction copy) {
  const Tensor& y = call.outputs[0];
  int64_t next = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const int64_t position = a.positions.empty() ? static_cast<int64_t>(i) : a.positions[i];
    FillTensor(y.Slice(a.dim, next, position - next), 0);
    copy(call.inputs[i], y.Select(a.dim, position));
    next = position + 1;
  }
  FillTensor(y.Slice(a.dim, next, y.shape()[a.dim] - next), 0);
}

}  // namespace weft
