#include "ops/shape/concat.h"

#include "ops/cpu/spans/parallel_copy.h"
#include "ops/op/kernel.h"
#include "ops/shape/join_pieces.h"

namespace weft {
namespace {

void Concat(const KernelCall<ConcatAttributes, NoScalars>& call) {
  ConcatPieces(call.attributes(), call,
               [&](const Tensor& from, const Tensor& to) { ParallelCopy(call.context.pool, from, to); });
}

const RegisterKernel kRegister(kConcat, DeviceType::kCpu, Concat);

}  // namespace
}  // namespace weft
