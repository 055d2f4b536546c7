#include "ops/op/kernel.h"
#include "ops/shape/concat.h"
#include "ops/shape/join_pieces.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Which part of an operand goes where is the same on every device; only how a tensor is copied is not.
void Concat(const KernelCall<ConcatAttributes, NoScalars>& call) {
  ConcatPieces(call.attributes(), call, CopyTensor);
}

const RegisterKernel kRegister(kConcat, DeviceType::kCuda, Concat);

}  // namespace
}  // namespace weft
