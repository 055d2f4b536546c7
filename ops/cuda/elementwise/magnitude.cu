#include <cuda_runtime.h>

#include <cmath>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/elementwise/magnitude.h"
#include "ops/op/kernel.h"
#include "runtime/base/wrapping.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

struct AbsOf {
  template <class C>
  __device__ C operator()(C x) const {
    if constexpr (std::is_integral_v<C>) {
      return x < 0 ? WrappingSub(C(0), x) : x;
    } else {
      return std::fabs(x);
    }
  }
};
// Two comparisons rather than a branch; of a NaN both are false, so its sign is 0.
struct SignOf {
  template <class C>
  __device__ C operator()(C x) const {
    return (x > 0 ? C(1) : C(0)) - (x < 0 ? C(1) : C(0));
  }
};
// 0 at 0, the middle of the subgradients.
struct AbsGradOf {
  template <class C>
  __device__ C operator()(C x, C dy) const {
    return x > 0 ? dy : x < 0 ? -dy : C(0);
  }
};

template <class Function>
void Unary(const Call& call) {
  VisitNumeric(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T>(call, Function());
  });
}

void AbsGrad(const Call& call) {
  VisitFloating(call.outputs[0].dtype(), "abs", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T, T>(call, AbsGradOf());
  });
}

const RegisterKernel kRegister[] = {
    {kAbs, DeviceType::kCuda, Unary<AbsOf>},
    {kSign, DeviceType::kCuda, Unary<SignOf>},
    {kAbsGrad, DeviceType::kCuda, AbsGrad},
};

}  // namespace
}  // namespace weft
