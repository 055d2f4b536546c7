#include "ops/shape/permute.h"

#include "ops/op/kernel.h"

namespace weft {
namespace {

// A view: most kernels take any strides, and products multiply a transposed operand as it lies.
void Permute(const KernelCall<PermuteAttributes, NoScalars>& call) {
  call.outputs[0] = call.inputs[0].Permute(call.attributes().order);
}

const RegisterKernel kRegister(kPermute, DeviceType::kCpu, Permute);

}  // namespace
}  // namespace weft
