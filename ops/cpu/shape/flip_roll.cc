#include "ops/shape/flip_roll.h"

#include "ops/cpu/shape/rearranged.h"
#include "ops/op/kernel.h"
#include "ops/shape/dim_source.h"

namespace weft {
namespace {

void Flip(const KernelCall<FlipAttributes, NoScalars>& call) {
  CopyRearranged(call, FlipRearrangement(call.attributes(), call.input_boxes[0]));
}
void Roll(const KernelCall<RollAttributes, NoScalars>& call) {
  CopyRearranged(call, RollRearrangement(call.attributes(), call.input_boxes[0]));
}

const RegisterKernel kRegisterFlip(kFlip, DeviceType::kCpu, Flip);
const RegisterKernel kRegisterRoll(kRoll, DeviceType::kCpu, Roll);

}  // namespace
}  // namespace weft
