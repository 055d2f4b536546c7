#include "ops/shape/stack.h"

#include "ops/cpu/spans/parallel_copy.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

void Stack(const KernelCall<StackAttributes, NoScalars>& call) {
  const StackAttributes& a = call.attributes();
  const Tensor& y = call.outputs[0];
  int64_t next = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const int64_t position = a.positions.empty() ? static_cast<int64_t>(i) : a.positions[i];
    FillTensor(y.Slice(a.dim, next, position - next), 0);
    ParallelCopy(call.context.pool, call.inputs[i], y.Select(a.dim, position));
    next = position + 1;
  }
  FillTensor(y.Slice(a.dim, next, y.shape()[a.dim] - next), 0);
}

void Unbind(const KernelCall<UnbindAttributes, NoScalars>& call) {
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    call.outputs[i] = call.inputs[0].Select(call.attributes().dim, static_cast<int64_t>(i));
  }
}

const RegisterKernel kRegisterStack(kStack, DeviceType::kCpu, Stack);
const RegisterKernel kRegisterUnbind(kUnbind, DeviceType::kCpu, Unbind);

}  // namespace
}  // namespace weft
