#include "ops/cuda/shape/rearranged.h"
#include "ops/op/kernel.h"
#include "ops/shape/dim_source.h"
#include "ops/shape/pad.h"

namespace weft {
namespace {

template <class R>
void PadWith(const KernelCall<PadAttributes, R>& call, double value) {
  CudaCopyRearranged(call, PadRearrangement(call.attributes(), call.input_boxes[0], value));
}

void Pad(const KernelCall<PadAttributes, NoScalars>& call) { PadWith(call, 0); }
void PadValue(const KernelCall<PadAttributes, PadScalars>& call) { PadWith(call, call.scalars().value); }

const RegisterKernel kRegister(kPad, DeviceType::kCuda, Pad);
const RegisterKernel kRegisterValue(kPadValue, DeviceType::kCuda, PadValue);

}  // namespace
}  // namespace weft
