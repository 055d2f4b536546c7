#include <algorithm>

#include "ops/cuda/blocks/mapped_copy.h"
#include "ops/op/kernel.h"
#include "ops/shape/concat.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Each operand's piece goes where it meets this rank's part of y; what no piece here meets is another rank's.
void Concat(const KernelCall<ConcatAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
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
    CopyTensor(call.inputs[i].Slice(dim, begin - piece, end - begin),
               y.Slice(dim, begin - here.offset, end - begin));
    filled = end;
  }
  FillTensor(y.Slice(dim, filled - here.offset, here.offset + here.size - filled), kAbsent);
}

const RegisterKernel kRegister(kConcat, DeviceType::kCuda, Concat);

}  // namespace
}  // namespace weft
