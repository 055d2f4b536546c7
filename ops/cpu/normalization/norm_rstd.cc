#include "ops/normalization/norm_rstd.h"

#include <cmath>

#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

// An op of its own, since it is not linear: pieces of a variance are added up first. One number per row.
void NormRstd(const KernelCall<NormRstdAttributes, NoScalars>& call) {
  const Tensor variance = Dense(call.inputs[0], call.context);
  VisitFloating(variance.dtype(), "norm_rstd", [&](auto tag) {
    using C = ComputeType<typename decltype(tag)::type>;
    const C* from = variance.data<C>();
    C* to = call.outputs[0].template data<C>();
    for (int64_t i = 0; i < variance.num_elements(); ++i) {
      to[i] = static_cast<C>(1 / std::sqrt(static_cast<double>(from[i]) + call.attributes().eps));
    }
  });
}

const RegisterKernel kRegister(kNormRstd, DeviceType::kCpu, NormRstd);

}  // namespace
}  // namespace weft
