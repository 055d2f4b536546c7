#include "ops/shape/pad.h"

#include "ops/cpu/shape/rearranged.h"
#include "ops/op/kernel.h"
#include "ops/shape/dim_source.h"

namespace weft {
namespace {

template <class R>
void PadWith(const KernelCall<PadAttributes, R>& call, double value) {
  CopyRearranged(call, PadRearrangement(call.attributes(), call.input_boxes[0], value));
}

void Pad(const KernelCall<PadAttributes, NoScalars>& call) { PadWith(call, 0); }
void PadValue(const KernelCall<PadAttributes, PadScalars>& call) { PadWith(call, call.scalars().value); }

const RegisterKernel kRegister(kPad, DeviceType::kCpu, Pad);
const RegisterKernel kRegisterValue(kPadValue, DeviceType::kCpu, PadValue);

}  // namespace
}  // namespace weft
