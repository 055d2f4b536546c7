#include "ops/cuda/shape/rearranged.h"
#include "ops/op/kernel.h"
#include "ops/shape/dim_source.h"
#include "ops/shape/slice.h"

namespace weft {
namespace {

void SliceGrad(const KernelCall<SliceGradAttributes, NoScalars>& call) {
  CudaCopyRearranged(call, SliceGradRearrangement(call.attributes(), call.input_boxes[0]));
}

const RegisterKernel kRegister(kSliceGrad, DeviceType::kCuda, SliceGrad);

}  // namespace
}  // namespace weft
