#include "ops/elementwise/cast.h"

#include "ops/cpu/spans/parallel_copy.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

void Cast(const KernelCall<CastAttributes, NoScalars>& call) {
  ParallelCopy(call.context.pool, call.inputs[0], call.outputs[0]);
}

// On all threads: a cast of parameters to their compute dtype is memory-bound and happens every step.
const RegisterKernel kRegisterCast(kCast, DeviceType::kCpu, Cast);
const RegisterKernel kRegisterConvert(kConvert, DeviceType::kCpu, Cast);

}  // namespace
}  // namespace weft
