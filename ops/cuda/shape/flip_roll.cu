#include "ops/cuda/shape/rearranged.h"
#include "ops/op/kernel.h"
#include "ops/shape/dim_source.h"
#include "ops/shape/flip_roll.h"

namespace weft {
namespace {

void Flip(const KernelCall<FlipAttributes, NoScalars>& call) {
  CudaCopyRearranged(call, FlipRearrangement(call.attributes(), call.input_boxes[0]));
}
void Roll(const KernelCall<RollAttributes, NoScalars>& call) {
  CudaCopyRearranged(call, RollRearrangement(call.attributes(), call.input_boxes[0]));
}

const RegisterKernel kRegisterFlip(kFlip, DeviceType::kCuda, Flip);
const RegisterKernel kRegisterRoll(kRoll, DeviceType::kCuda, Roll);

}  // namespace
}  // namespace weft
