#include <cuda_runtime.h>

#include <cmath>
#include <limits>

#include "ops/adamw_constants.h"
#include "ops/cuda/map_elements.h"
#include "ops/cuda/rounded.h"
#include "ops/kernel.h"
#include "ops/optimizer_update.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A scalar of f32 or f64 on the device.
struct DeviceScalar {
  const void* data;
  bool is_double;

  explicit DeviceScalar(const Tensor& tensor)
      : data(tensor.data()), is_double(tensor.dtype() == DType::kF64) {}

  __device__ double Get() const {
    return is_double ? *static_cast<const double*>(data) : *static_cast<const float*>(data);
  }
};

// An update of one pass, skipped if the clip factor is not finite: Step has a member `clip`, which is set
// where the factor is known, on the device.
template <class Step>
struct Clipped {
  Step step;
  DeviceScalar clip;

  __device__ bool Skips() const {
    const double factor = clip.Get();
    return factor - factor != 0;
  }
  __device__ Step StartAt(int64_t) const {
    Step clipped = step;
    clipped.constants.clip = static_cast<decltype(clipped.constants.clip)>(clip.Get());
    return clipped;
  }
};

// Products and sums are rounded one by one in all three, as on the CPU: replicas of a parameter stay equal
// bit for bit wherever they are updated.

template <class C>
struct AdamWStep {
  AdamWConstants<C> constants;

  template <class G>
  __device__ void operator()(C& p, C& m, C& v, const G& g) const {
    const AdamWConstants<C>& c = constants;
    const C gradient = MulRounded(static_cast<C>(g), c.clip);
    m = AddRounded(m, MulRounded(SubRounded(gradient, m), c.gain1));
    v = AddRounded(MulRounded(v, c.beta2), MulRounded(MulRounded(gradient, gradient), c.gain2));
    const C denominator = AddRounded(MulRounded(std::sqrt(v), c.correction2), c.eps);
    p = SubRounded(MulRounded(p, c.decay), MulRounded(c.rate, m / denominator));
  }
};

template <class C>
struct SgdConstants {
  C clip, rate, momentum, decay;
};

// g * clip + decay * p.
template <class C>
__device__ C DecayedGradient(const SgdConstants<C>& c, C p, C g) {
  return AddRounded(MulRounded(g, c.clip), MulRounded(c.decay, p));
}

template <class C>
struct SgdStep {
  SgdConstants<C> constants;

  template <class G>
  __device__ void operator()(C& p, const G& g) const {
    p = SubRounded(p, MulRounded(constants.rate, DecayedGradient(constants, p, static_cast<C>(g))));
  }
};

template <class C>
struct MomentumStep {
  SgdConstants<C> constants;

  template <class G>
  __device__ void operator()(C& p, C& b, const G& g) const {
    b = AddRounded(MulRounded(constants.momentum, b), DecayedGradient(constants, p, static_cast<C>(g)));
    p = SubRounded(p, MulRounded(constants.rate, b));
  }
};

// Calls `function(TypeTag<P>(), TypeTag<G>(), g)` with the element types of the parameter and of its gradient
// g: as it is in P or in f32, or in halves beside an f32 parameter. Others are first converted, in a pass of
// their own, to what the step computes in: the same bits, and half as many kernels.
template <class Function>
void VisitUpdate(const KernelCallBase& call, const Tensor& g, const Function& function) {
  VisitFloating(call.outputs[0].dtype(), "update", [&](auto p_tag) {
    using P = typename decltype(p_tag)::type;
    using C = ElementValue<P>;
    if (g.dtype() == kDTypeOf<P>) return function(p_tag, p_tag, g);
    if constexpr (std::is_same_v<P, float>) {
      if (g.dtype() == DType::kBF16) return function(p_tag, TypeTag<BFloat16>(), g);
      if (g.dtype() == DType::kF16) return function(p_tag, TypeTag<Float16>(), g);
    }
    function(p_tag, TypeTag<C>(),
             g.dtype() == kDTypeOf<C> ? g : CastTensor(g, kDTypeOf<C>, call.context.allocator));
  });
}

void AdamWUpdate(const KernelCall<NoAttributes, AdamWScalars>& call) {
  WEFT_REQUIRE(call.scalars().step >= 1, "adamw_update: step counts from 1, got ", call.scalars().step);
  VisitUpdate(call, call.inputs[3], [&](auto p_tag, auto g_tag, const Tensor& g) {
    using P = typename decltype(p_tag)::type;
    using G = typename decltype(g_tag)::type;
    using Step = AdamWStep<ElementValue<P>>;
    const Step step = {MakeAdamWConstants<ElementValue<P>>(call.scalars(), /*clip=*/1)};
    MapOperands(KernelStream(call), call.outputs[0].shape(),
                Clipped<Step>{step, DeviceScalar(call.inputs[4])}, Updates<P>{call.outputs[0]},
                Updates<P>{call.outputs[1]}, Updates<P>{call.outputs[2]}, Reads<G>{g});
  });
}

void SgdUpdate(const KernelCall<NoAttributes, SgdScalars>& call) {
  const SgdScalars& s = call.scalars();
  VisitUpdate(call, call.inputs[1], [&](auto p_tag, auto g_tag, const Tensor& g) {
    using P = typename decltype(p_tag)::type;
    using G = typename decltype(g_tag)::type;
    using C = ElementValue<P>;
    const SgdStep<C> step = {
        {.clip = 1, .rate = static_cast<C>(s.lr), .momentum = 0, .decay = static_cast<C>(s.weight_decay)}};
    MapOperands(KernelStream(call), call.outputs[0].shape(),
                Clipped<SgdStep<C>>{step, DeviceScalar(call.inputs[2])}, Updates<P>{call.outputs[0]},
                Reads<G>{g});
  });
}

void MomentumUpdate(const KernelCall<NoAttributes, MomentumScalars>& call) {
  const MomentumScalars& s = call.scalars();
  VisitUpdate(call, call.inputs[2], [&](auto p_tag, auto g_tag, const Tensor& g) {
    using P = typename decltype(p_tag)::type;
    using G = typename decltype(g_tag)::type;
    using C = ElementValue<P>;
    const MomentumStep<C> step = {{.clip = 1,
                                   .rate = static_cast<C>(s.lr),
                                   .momentum = static_cast<C>(s.momentum),
                                   .decay = static_cast<C>(s.weight_decay)}};
    MapOperands(KernelStream(call), call.outputs[0].shape(),
                Clipped<MomentumStep<C>>{step, DeviceScalar(call.inputs[3])}, Updates<P>{call.outputs[0]},
                Updates<P>{call.outputs[1]}, Reads<G>{g});
  });
}

template <class T>
__global__ void ClipFactorKernel(DeviceScalar norm_squared, double max_norm, T* factor) {
  const double x = norm_squared.Get();
  const double ratio = max_norm / (std::sqrt(x) + 1e-6);
  // Not finite: x - x is NaN.
  *factor = static_cast<T>(x - x != 0 ? x - x : ratio < 1.0 ? ratio : 1.0);
}

void ClipFactor(const KernelCall<NoAttributes, ClipScalars>& call) {
  const Tensor& y = call.outputs[0];
  const DeviceScalar x(call.inputs[0]);
  const double max_norm = call.scalars().max_norm;
  const CudaGrid one = {.blocks = 1, .threads = 1};
  if (y.dtype() == DType::kF64) {
    LaunchCuda(KernelStream(call), one, ClipFactorKernel<double>, x, max_norm, y.data<double>());
  } else {
    LaunchCuda(KernelStream(call), one, ClipFactorKernel<float>, x, max_norm, y.data<float>());
  }
}

struct AccumulateStep {
  template <class C, class X>
  __device__ void operator()(C& acc, const X& x) const {
    acc += static_cast<C>(x);
  }
};

void Accumulate(const KernelCall<NoAttributes, NoScalars>& call) {
  VisitUpdate(call, call.inputs[1], [&](auto acc_tag, auto x_tag, const Tensor& x) {
    using Acc = typename decltype(acc_tag)::type;
    using X = typename decltype(x_tag)::type;
    MapOperands(KernelStream(call), call.outputs[0].shape(), AccumulateStep(), Updates<Acc>{call.outputs[0]},
                Reads<X>{x});
  });
}

const RegisterKernel kRegister[] = {
    {kAdamWUpdate, DeviceType::kCuda, AdamWUpdate},       {kSgdUpdate, DeviceType::kCuda, SgdUpdate},
    {kMomentumUpdate, DeviceType::kCuda, MomentumUpdate}, {kClipFactor, DeviceType::kCuda, ClipFactor},
    {kAccumulate, DeviceType::kCuda, Accumulate},
};

}  // namespace
}  // namespace weft
