#include "ops/op/kernel.h"
#include "ops/shape/stack.h"
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
    CopyTensor(call.inputs[i], y.Select(a.dim, position));
    next = position + 1;
  }
  FillTensor(y.Slice(a.dim, next, y.shape()[a.dim] - next), 0);
}

const RegisterKernel kRegister(kStack, DeviceType::kCuda, Stack);

}  // namespace
}  // namespace weft
