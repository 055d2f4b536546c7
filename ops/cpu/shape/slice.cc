#include "ops/shape/slice.h"

#include "ops/cpu/shape/rearranged.h"
#include "ops/cpu/spans/dim_maps.h"
#include "ops/op/kernel.h"
#include "ops/shape/dim_source.h"

namespace weft {
namespace {

void Slice(const KernelCall<SliceAttributes, NoScalars>& call) {
  const SliceAttributes& a = call.attributes();
  call.outputs[0] =
      SlicePiece(call.context, call.inputs[0], call.input_boxes[0], call.output_boxes[0], a.dim, a.start);
}

// The gradient of a slice is a pad by zeros, written in one pass.
void SliceGrad(const KernelCall<SliceGradAttributes, NoScalars>& call) {
  CopyRearranged(call, SliceGradRearrangement(call.attributes(), call.input_boxes[0]));
}

const RegisterKernel kRegisterSlice(kSlice, DeviceType::kCpu, Slice);
const RegisterKernel kRegisterSliceGrad(kSliceGrad, DeviceType::kCpu, SliceGrad);

}  // namespace
}  // namespace weft
