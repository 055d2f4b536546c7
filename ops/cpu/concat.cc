#include "ops/concat.h"

#include "ops/cpu/parallel_copy.h"
#include "ops/kernel.h"

namespace weft {
namespace {

void Concat(const KernelCall<ConcatAttributes, NoScalars>& call) {
  const int dim = call.attributes().dim;
  int64_t start = 0;
  for (const Tensor& x : call.inputs) {
    const int64_t length = x.shape()[dim];
    ParallelCopy(call.context.pool, x, call.outputs[0].Slice(dim, start, length));
    start += length;
  }
}

const RegisterKernel kRegister(kConcat, DeviceType::kCpu, Concat);

}  // namespace
}  // namespace weft
