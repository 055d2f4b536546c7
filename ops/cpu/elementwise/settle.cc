#include "ops/elementwise/settle.h"

#include "ops/op/kernel.h"

namespace weft {
namespace {

// A view: the op exists for the reduction of a Partial operand, which comes before the kernel.
void Settle(const KernelCall<NoAttributes, NoScalars>& call) { call.outputs[0] = call.inputs[0]; }

const RegisterKernel kRegister(kSettle, DeviceType::kCpu, Settle);

}  // namespace
}  // namespace weft
