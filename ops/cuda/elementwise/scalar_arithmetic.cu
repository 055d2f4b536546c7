#include <cuda_runtime.h>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/elementwise/scalar_arithmetic.h"
#include "ops/op/kernel.h"
#include "ops/op/number_as.h"
#include "runtime/base/wrapping.h"

namespace weft {
namespace {

// x + shift, or shift - x.
template <class C>
struct ShiftBy {
  C shift;
  bool negate;

  __device__ C operator()(C x) const {
    if constexpr (std::is_integral_v<C>) {
      return negate ? WrappingSub(shift, x) : WrappingAdd(x, shift);
    } else {
      return negate ? shift - x : x + shift;
    }
  }
};
// A quotient, not a product with the reciprocal, which would be rounded twice.
template <class C>
struct DivideBy {
  C divisor;

  __device__ C operator()(C x) const { return x / divisor; }
};
template <class C>
struct DivideFrom {
  C dividend;

  __device__ C operator()(C x) const { return dividend / x; }
};

void ShiftKernel(const KernelCall<NoAttributes, ShiftScalars>& call) {
  VisitNumeric(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ElementValue<T>;
    MapElements<T, T>(call, ShiftBy<C>{NumberAs<C>("shift", call.scalars().shift), call.scalars().negate});
  });
}

void DivScalarKernel(const KernelCall<NoAttributes, DivScalars>& call) {
  VisitFloating(call.outputs[0].dtype(), "div_scalar", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ElementValue<T>;
    MapElements<T, T>(call, DivideBy<C>{static_cast<C>(call.scalars().divisor)});
  });
}

void ScalarDivKernel(const KernelCall<NoAttributes, QuotientScalars>& call) {
  VisitFloating(call.outputs[0].dtype(), "scalar_div", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ElementValue<T>;
    MapElements<T, T>(call, DivideFrom<C>{static_cast<C>(call.scalars().dividend)});
  });
}

const RegisterKernel kRegister[] = {
    {kShift, DeviceType::kCuda, ShiftKernel},
    {kDivScalar, DeviceType::kCuda, DivScalarKernel},
    {kScalarDiv, DeviceType::kCuda, ScalarDivKernel},
};

}  // namespace
}  // namespace weft
