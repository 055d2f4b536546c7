#include "ops/shape/reshape.h"

#include "ops/cpu/spans/parallel_copy.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void Reshape(const KernelCall<ReshapeAttributes, NoScalars>& call) {
  const Tensor& x = call.inputs[0];
  const Shape& shape = call.output_boxes[0].shape;
  // Only strides that cannot express the new shape cost a copy. The shape is the piece's own: what is split
  // stays where it is.
  const bool is_view = x.CanReshape(shape);
  const Tensor source = is_view ? x : ParallelClone(call.context.pool, x, call.context.allocator);
  call.outputs[0] = source.Reshape(shape);
}

const RegisterKernel kRegister(kReshape, DeviceType::kCpu, Reshape);

}  // namespace
}  // namespace weft
