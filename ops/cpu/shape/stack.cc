#include "ops/shape/stack.h"

#include "ops/cpu/spans/parallel_copy.h"
#include "ops/op/kernel.h"
#include "ops/shape/join_pieces.h"

namespace weft {
namespace {

void Stack(const KernelCall<StackAttributes, NoScalars>& call) {
  StackPieces(call.attributes(), call,
              [&](const Tensor& from, const Tensor& to) { ParallelCopy(call.context.pool, from, to); });
}

// Views, since the dim that goes is whole on every rank.
void Unbind(const KernelCall<UnbindAttributes, NoScalars>& call) {
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    call.outputs[i] = call.inputs[0].Select(call.attributes().dim, static_cast<int64_t>(i));
  }
}

const RegisterKernel kRegisterStack(kStack, DeviceType::kCpu, Stack);
const RegisterKernel kRegisterUnbind(kUnbind, DeviceType::kCpu, Unbind);

}  // namespace
}  // namespace weft
