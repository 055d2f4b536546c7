#include "ops/slice.h"

#include "ops/cpu/parallel_copy.h"
#include "ops/kernel.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

void Slice(const KernelCall<SliceAttributes, NoScalars>& call) {
  const SliceAttributes& a = call.attributes();
  const Tensor& x = call.inputs[0];
  // The rule lets the dim be split only where the slice is all of it.
  const bool all = a.length == call.input_boxes[0].global_shape[a.dim];
  call.outputs[0] = all ? x : x.Slice(a.dim, a.start, a.length);
}

void SliceGrad(const KernelCall<SliceGradAttributes, NoScalars>& call) {
  const SliceGradAttributes& a = call.attributes();
  const Tensor& dy = call.inputs[0];
  const Tensor& dx = call.outputs[0];
  const int64_t length = dy.shape()[a.dim];
  // Where dy is all of dx, both may be pieces, and start is 0.
  const int64_t end = a.start + length;
  FillTensor(dx.Slice(a.dim, 0, a.start), 0);
  FillTensor(dx.Slice(a.dim, end, dx.shape()[a.dim] - end), 0);
  ParallelCopy(call.context.pool, dy, dx.Slice(a.dim, a.start, length));
}

const RegisterKernel kRegisterSlice(kSlice, DeviceType::kCpu, Slice);
const RegisterKernel kRegisterSliceGrad(kSliceGrad, DeviceType::kCpu, SliceGrad);

}  // namespace
}  // namespace weft
