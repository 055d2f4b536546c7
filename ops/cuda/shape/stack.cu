#include "ops/op/kernel.h"
#include "ops/shape/join_pieces.h"
#include "ops/shape/stack.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// As concat's: only the copy is this device's own.
void Stack(const KernelCall<StackAttributes, NoScalars>& call) {
  StackPieces(call.attributes(), call, CopyTensor);
}

const RegisterKernel kRegister(kStack, DeviceType::kCuda, Stack);

}  // namespace
}  // namespace weft
