#include <cuda_runtime.h>

#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/normalization/norm_rstd.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

// Root and quotient in double, as in the kernel of whole rows: a split row differs by the rounding of its
// variance, which is all-reduced in C, alone.
template <class C>
__global__ void NormRstdKernel(const C* variance, int64_t count, double eps, C* rstd) {
  ForEachOfGrid(
      count, [&](int64_t i) { rstd[i] = static_cast<C>(1 / sqrt(static_cast<double>(variance[i]) + eps)); });
}

void NormRstd(const KernelCall<NormRstdAttributes, NoScalars>& call) {
  const Tensor variance = PackedTensor(call.inputs[0], call.context);
  const int64_t count = variance.num_elements();
  if (count == 0) return;
  const auto run = [&]<class C>(TypeTag<C>) {
    LaunchCuda(KernelStream(call), GridOver(count), NormRstdKernel<C>, variance.data<C>(), count,
               call.attributes().eps, call.outputs[0].data<C>());
  };
  variance.dtype() == DType::kF64 ? run(TypeTag<double>()) : run(TypeTag<float>());
}

const RegisterKernel kRegister(kNormRstd, DeviceType::kCuda, NormRstd);

}  // namespace
}  // namespace weft
