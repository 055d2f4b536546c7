#include <cuda_runtime.h>

#include <cmath>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/cuda/elementwise/gelu.h"
#include "ops/cuda/elementwise/sigmoid.h"
#include "ops/elementwise/elementwise.h"
#include "ops/op/kernel.h"
#include "ops/op/number_as.h"
#include "runtime/base/wrapping.h"

namespace weft {
namespace {

// Integers wrap, computed unsigned: in C++ the overflow of a signed sum is undefined, and nvcc may count on
// there being none.
struct AddOf {
  template <class C>
  __device__ C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      return WrappingAdd(a, b);
    } else {
      return a + b;
    }
  }
};
struct SubOf {
  template <class C>
  __device__ C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      return WrappingSub(a, b);
    } else {
      return a - b;
    }
  }
};
struct MulOf {
  template <class C>
  __device__ C operator()(C a, C b) const {
    if constexpr (std::is_integral_v<C>) {
      return WrappingMul(a, b);
    } else {
      return a * b;
    }
  }
};
struct DivOf {
  template <class C>
  __device__ C operator()(C a, C b) const {
    return a / b;
  }
};

struct NegOf {
  template <class C>
  __device__ C operator()(C x) const {
    if constexpr (std::is_integral_v<C>) {
      return WrappingSub(C(0), x);
    } else {
      return -x;
    }
  }
};
// Not the quick __expf and its like, whose error grows with x: an elementwise kernel waits for memory, so
// full accuracy in float costs little. Halves are computed in float and rounded once.
struct ExpOf {
  template <class C>
  __device__ C operator()(C x) const {
    return std::exp(x);
  }
};
struct LogOf {
  template <class C>
  __device__ C operator()(C x) const {
    return std::log(x);
  }
};
struct SqrtOf {
  template <class C>
  __device__ C operator()(C x) const {
    return std::sqrt(x);
  }
};
struct RsqrtOf {
  __device__ float operator()(float x) const { return rsqrtf(x); }
  __device__ double operator()(double x) const { return 1 / std::sqrt(x); }
};
struct TanhOf {
  template <class C>
  __device__ C operator()(C x) const {
    return std::tanh(x);
  }
};
struct SquareOf {
  template <class C>
  __device__ C operator()(C x) const {
    return x * x;
  }
};
// Passes NaN on.
// By a comparison, which is false of a NaN: fmaxf(x, 0) would give 0.
struct ReluOf {
  template <class C>
  __device__ C operator()(C x) const {
    return x < 0 ? C(0) : x;
  }
};
// Of relu's y, which is saved instead of x.
struct ReluGradOf {
  template <class C>
  __device__ C operator()(C y, C dy) const {
    return y <= 0 ? C(0) : dy;
  }
};
// Not 1 - y^2, of which little is left where |y| is near 1: there the small factor is exact.
struct TanhGradOf {
  template <class C>
  __device__ C operator()(C y, C dy) const {
    return dy * ((1 - y) * (1 + y));
  }
};

// In float, what is below the limit is under 2e-36.
struct SiluOf {
  __device__ float operator()(float x) const {
    return x < -kSigmoidLimit ? 0.0f : x * SigmoidOf(ClampTo(x, kSigmoidLimit)).value;
  }
  __device__ double operator()(double x) const { return x * SigmoidOf(x).value; }
};
// s (1 + x (1 - s)).
// The complement comes from SigmoidOf rather than from 1 - s, which cancels where s is near 1.
struct SiluGradOf {
  __device__ float operator()(float x, float dy) const {
    const float c = ClampTo(x, kSigmoidLimit);
    const SigmoidParts<float> s = SigmoidOf(c);
    const float derivative = s.value * (1.0f + c * s.complement);
    return dy * (x != x ? x : x < -kSigmoidLimit ? 0.0f : derivative);
  }
  __device__ double operator()(double x, double dy) const {
    const SigmoidParts<double> s = SigmoidOf(x);
    return dy * s.value * (1 + x * s.complement);
  }
};

// A struct for each form and not a flag: the forms share no instruction worth a branch per element.
template <bool kQuick>
struct GeluTanhOf {
  template <class C>
  __device__ C operator()(C x) const {
    return GeluTanh<kQuick>(x);
  }
};
struct GeluErfOf {
  template <class C>
  __device__ C operator()(C x) const {
    return GeluErf(x);
  }
};
template <bool kQuick>
struct GeluTanhGradOf {
  template <class C>
  __device__ C operator()(C x, C dy) const {
    return dy * GeluTanhGrad<kQuick>(x);
  }
};
struct GeluErfGradOf {
  template <class C>
  __device__ C operator()(C x, C dy) const {
    return dy * GeluErfGrad(x);
  }
};

template <class C>
struct ScaleBy {
  C factor;

  __device__ C operator()(C x) const {
    if constexpr (std::is_integral_v<C>) {
      return WrappingMul(x, factor);
    } else {
      return x * factor;
    }
  }
};

// True for halves.
template <class T>
inline constexpr bool kIsNarrow = !std::is_same_v<T, ElementValue<T>>;

template <class Function, class OfHalves = Function>
void UnaryOf(const KernelCallBase& call) {
  VisitFloating(call.outputs[0].dtype(), "elementwise", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T>(call, std::conditional_t<kIsNarrow<T>, OfHalves, Function>());
  });
}

template <class Function, class OfHalves = Function>
void BinaryOf(const KernelCallBase& call) {
  VisitFloating(call.outputs[0].dtype(), "elementwise", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T, T>(call, std::conditional_t<kIsNarrow<T>, OfHalves, Function>());
  });
}

template <class Function>
void Unary(const KernelCall<NoAttributes, NoScalars>& call) {
  UnaryOf<Function>(call);
}
template <class Function>
void Binary(const KernelCall<NoAttributes, NoScalars>& call) {
  BinaryOf<Function>(call);
}

// Of integers too.
template <class Function>
void NumericBinary(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitNumeric(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T, T>(call, Function());
  });
}

void Neg(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitNumeric(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T>(call, NegOf());
  });
}

void Gelu(const KernelCall<GeluAttributes, NoScalars>& call) {
  call.attributes().exact ? UnaryOf<GeluErfOf>(call) : UnaryOf<GeluTanhOf<false>, GeluTanhOf<true>>(call);
}

void GeluGrad(const KernelCall<GeluAttributes, NoScalars>& call) {
  call.attributes().exact ? BinaryOf<GeluErfGradOf>(call)
                          : BinaryOf<GeluTanhGradOf<false>, GeluTanhGradOf<true>>(call);
}

void Scale(const KernelCall<NoAttributes, ScaleScalars>& call) {
  VisitNumeric(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ElementValue<T>;
    MapElements<T, T>(call, ScaleBy<C>{NumberAs<C>("scale", call.scalars().factor)});
  });
}

const RegisterKernel kRegister[] = {
    {kAdd, DeviceType::kCuda, NumericBinary<AddOf>},
    {kSub, DeviceType::kCuda, NumericBinary<SubOf>},
    {kMul, DeviceType::kCuda, NumericBinary<MulOf>},
    {kDiv, DeviceType::kCuda, Binary<DivOf>},
    {kNeg, DeviceType::kCuda, Neg},
    {kExp, DeviceType::kCuda, Unary<ExpOf>},
    {kLog, DeviceType::kCuda, Unary<LogOf>},
    {kSqrt, DeviceType::kCuda, Unary<SqrtOf>},
    {kRsqrt, DeviceType::kCuda, Unary<RsqrtOf>},
    {kTanh, DeviceType::kCuda, Unary<TanhOf>},
    {kSquare, DeviceType::kCuda, Unary<SquareOf>},
    {kRelu, DeviceType::kCuda, Unary<ReluOf>},
    {kSilu, DeviceType::kCuda, Unary<SiluOf>},
    {kGelu, DeviceType::kCuda, Gelu},
    {kScale, DeviceType::kCuda, Scale},
    {kReluGrad, DeviceType::kCuda, Binary<ReluGradOf>},
    {kTanhGrad, DeviceType::kCuda, Binary<TanhGradOf>},
    {kSiluGrad, DeviceType::kCuda, Binary<SiluGradOf>},
    {kGeluGrad, DeviceType::kCuda, GeluGrad},
};

}  // namespace
}  // namespace weft
