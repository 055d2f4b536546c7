#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/cuda/blocks/rounded.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/optimizer/update_elements.h"
#include "ops/op/kernel.h"
#include "ops/optimizer/adamw_constants.h"
#include "ops/optimizer/lion_constants.h"
#include "ops/optimizer/optimizer_update.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Products and sums are rounded one by one in all, as on the CPU: replicas of a parameter stay equal
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

// Small: a launch takes as many tensors as such structs fit its parameters.
// The rates are read from the device: the count of the steps that were not skipped is known there alone.
template <class C>
struct AdamWGiven {
  C decay, gain1, beta2, gain2, eps;
  int64_t stride;   // of r
  const double* r;  // kAdamWRates'

  __device__ AdamWStep<C> At(double clip) const {
    return {{.clip = static_cast<C>(clip),
             .decay = decay,
             .gain1 = gain1,
             .beta2 = beta2,
             .gain2 = gain2,
             .rate = static_cast<C>(r[0]),
             .correction2 = static_cast<C>(r[stride]),
             .eps = eps}};
  }
};

template <class C>
struct SgdConstants {
  C clip, rate, momentum, decay;
};

template <class C>
__device__ SgdConstants<C> WithClip(SgdConstants<C> constants, double clip) {
  constants.clip = static_cast<C>(clip);
  return constants;
}

// g * clip + decay * p.
template <class C>
__device__ C DecayedGradient(const SgdConstants<C>& c, C p, C g) {
  return AddRounded(MulRounded(g, c.clip), MulRounded(c.decay, p));
}

template <class C>
struct SgdStep {
  SgdConstants<C> constants;

  __device__ SgdStep At(double clip) const { return {WithClip(constants, clip)}; }

  template <class G>
  __device__ void operator()(C& p, const G& g) const {
    p = SubRounded(p, MulRounded(constants.rate, DecayedGradient(constants, p, static_cast<C>(g))));
  }
};

template <class C>
struct MomentumStep {
  SgdConstants<C> constants;

  __device__ MomentumStep At(double clip) const { return {WithClip(constants, clip)}; }

  template <class G>
  __device__ void operator()(C& p, C& b, const G& g) const {
    b = AddRounded(MulRounded(constants.momentum, b), DecayedGradient(constants, p, static_cast<C>(g)));
    p = SubRounded(p, MulRounded(constants.rate, b));
  }
};

template <class C>
struct NesterovStep {
  SgdConstants<C> constants;

  __device__ NesterovStep At(double clip) const { return {WithClip(constants, clip)}; }

  template <class G>
  __device__ void operator()(C& p, C& b, const G& g) const {
    const C gradient = DecayedGradient(constants, p, static_cast<C>(g));
    b = AddRounded(MulRounded(constants.momentum, b), gradient);
    const C ahead = AddRounded(gradient, MulRounded(constants.momentum, b));
    p = SubRounded(p, MulRounded(constants.rate, ahead));
  }
};

template <class C>
struct LionStep {
  LionConstants<C> constants;

  __device__ LionStep At(double clip) const {
    LionStep step = *this;
    step.constants.clip = static_cast<C>(clip);
    return step;
  }

  template <class G>
  __device__ void operator()(C& p, C& m, const G& g) const {
    const LionConstants<C>& c = constants;
    const C gradient = MulRounded(static_cast<C>(g), c.clip);
    const C direction = AddRounded(MulRounded(c.beta1, m), MulRounded(c.gain1, gradient));
    p = SubRounded(MulRounded(p, c.decay), MulRounded(c.rate, SignOf(direction)));
    m = AddRounded(MulRounded(c.beta2, m), MulRounded(c.gain2, gradient));
  }
};

// The weight stands where other updates have the clip factor.
template <class C>
struct LerpStep {
  C weight;

  __device__ LerpStep At(double w) const { return {static_cast<C>(w)}; }

  template <class X>
  __device__ void operator()(C& m, const X& x) const {
    m = AddRounded(m, MulRounded(SubRounded(static_cast<C>(x), m), weight));
  }
};

// What tells the updates apart: see UpdateOne.

struct AdamWUpdate {
  using Scalars = AdamWScalars;
  static constexpr int kNumState = 2;

  template <class C>
  static AdamWGiven<C> Given(const UpdateKernelCall<Scalars>& call) {
    const auto c = MakeAdamWConstants<C>(call.scalars(), /*clip=*/1, /*rate=*/0, /*correction2=*/0);
    const Tensor& r = call.inputs[5];
    return {c.decay, c.gain1, c.beta2, c.gain2, c.eps, r.strides()[0], r.data<double>()};
  }
};

struct SgdUpdate {
  using Scalars = SgdScalars;
  static constexpr int kNumState = 0;

  template <class C>
  static SgdStep<C> Given(const UpdateKernelCall<Scalars>& call) {
    const Scalars& s = call.scalars();
    return {
        {.clip = 1, .rate = static_cast<C>(s.lr), .momentum = 0, .decay = static_cast<C>(s.weight_decay)}};
  }
};

struct MomentumUpdate {
  using Scalars = MomentumScalars;
  static constexpr int kNumState = 1;

  template <class C>
  static MomentumStep<C> Given(const UpdateKernelCall<Scalars>& call) {
    const Scalars& s = call.scalars();
    return {{.clip = 1,
             .rate = static_cast<C>(s.lr),
             .momentum = static_cast<C>(s.momentum),
             .decay = static_cast<C>(s.weight_decay)}};
  }
};

struct NesterovUpdate {
  using Scalars = MomentumScalars;
  static constexpr int kNumState = 1;

  template <class C>
  static NesterovStep<C> Given(const UpdateKernelCall<Scalars>& call) {
    return {MomentumUpdate::Given<C>(call).constants};
  }
};

struct LionUpdate {
  using Scalars = LionScalars;
  static constexpr int kNumState = 1;

  template <class C>
  static LionStep<C> Given(const UpdateKernelCall<Scalars>& call) {
    return {MakeLionConstants<C>(call.scalars(), /*clip=*/1)};
  }
};

struct LerpUpdate {
  using Scalars = NoScalars;
  static constexpr int kNumState = 0;

  template <class C>
  static LerpStep<C> Given(const UpdateKernelCall<Scalars>&) {
    return {.weight = 0};
  }
};

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

// On the device, where the skip is known: steps that were skipped do not count, and the host need not ask.
__global__ void CountUpdateKernel(DeviceScalar clip, int64_t* count) {
  const double factor = clip.Get();
  if (factor - factor == 0) ++*count;
}

void CountUpdate(const KernelCall<NoAttributes, NoScalars>& call) {
  LaunchCuda(KernelStream(call), CudaGrid{.blocks = 1, .threads = 1}, CountUpdateKernel,
             DeviceScalar(call.inputs[1]), call.outputs[0].data<int64_t>());
}

// One thread for all parameters: the powers of beta are the same for each. In RoundedMath, so that the rates
// are the CPU's bit by bit.
__global__ void AdamWRatesKernel(const int64_t* count, AdamWRatesScalars scalars, double* r) {
  const AdamWRates rates = AdamWRatesOf<RoundedMath>(scalars, *count);
  r[0] = rates.rate;
  r[1] = rates.correction2;
}

void AdamWRatesOfCount(const KernelCall<NoAttributes, AdamWRatesScalars>& call) {
  LaunchCuda(KernelStream(call), CudaGrid{.blocks = 1, .threads = 1}, AdamWRatesKernel,
             call.inputs[0].data<int64_t>(), call.scalars(), call.outputs[0].data<double>());
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

// As many addends as a launch takes.
template <class T>
struct Addends {
  // 480 addresses are 3840 bytes of the 4096 that a kernel's parameters may take on every GPU.
  static constexpr int kMost = 480;
  int count = 0;
  const T* data[kMost];
};

// y = addends, or y + addends, one after the other, each sum rounded to T.
// Rounded each time, as the ops that it stands for would: bits do not tell how many addends a launch took.
template <class T>
__global__ void AddAllKernel(const Addends<T> addends, bool adds_to_y, T* y, int64_t n) {
  using C = ElementValue<T>;
  ForEachOfGrid(n, [&](int64_t i) {
    T sum = adds_to_y ? y[i] : addends.data[0][i];
#pragma unroll 8
    for (int k = adds_to_y ? 0 : 1; k < addends.count; ++k) {
      sum = ConvertElement<T>(ConvertElement<C>(sum) + ConvertElement<C>(addends.data[k][i]));
    }
    y[i] = sum;
  });
}

void AddAll(const KernelCall<NoAttributes, NoScalars>& call) {
  const Tensor& y = call.outputs[0];
  const int64_t n = y.num_elements();
  if (n == 0) return;
  VisitFloating(y.dtype(), "add_all", [&](auto tag) {
    using T = typename decltype(tag)::type;
    std::vector<Tensor> packed;  // what memory they have must not be taken again before the launch
    for (const Tensor& x : call.inputs) packed.push_back(PackedTensor(x, y.dtype(), call.context));
    for (size_t begin = 0; begin < packed.size(); begin += Addends<T>::kMost) {
      Addends<T> addends;
      addends.count = static_cast<int>(std::min<size_t>(packed.size() - begin, Addends<T>::kMost));
      for (int k = 0; k < addends.count; ++k) addends.data[k] = packed[begin + k].template data<T>();
      LaunchCuda(KernelStream(call), GridOver(n), AddAllKernel<T>, addends, begin > 0, y.data<T>(), n);
    }
  });
}

const RegisterKernel kRegister[] = {
    {kCountUpdate, DeviceType::kCuda, CountUpdate},
    {kAdamWRates, DeviceType::kCuda, AdamWRatesOfCount},
    {kAdamWUpdate, DeviceType::kCuda, UpdateOne<AdamWUpdate>},
    {kSgdUpdate, DeviceType::kCuda, UpdateOne<SgdUpdate>},
    {kMomentumUpdate, DeviceType::kCuda, UpdateOne<MomentumUpdate>},
    {kNesterovUpdate, DeviceType::kCuda, UpdateOne<NesterovUpdate>},
    {kLionUpdate, DeviceType::kCuda, UpdateOne<LionUpdate>},
    {kLerpUpdate, DeviceType::kCuda, UpdateOne<LerpUpdate>},
    {kClipFactor, DeviceType::kCuda, ClipFactor},
    {kAccumulate, DeviceType::kCuda, Accumulate},
    {kAddAll, DeviceType::kCuda, AddAll},
};
const RegisterBatchKernel kRegisterBatch[] = {
    {kAdamWUpdate, DeviceType::kCuda, UpdateMany<AdamWUpdate>},
    {kSgdUpdate, DeviceType::kCuda, UpdateMany<SgdUpdate>},
    {kMomentumUpdate, DeviceType::kCuda, UpdateMany<MomentumUpdate>},
    {kNesterovUpdate, DeviceType::kCuda, UpdateMany<NesterovUpdate>},
    {kLionUpdate, DeviceType::kCuda, UpdateMany<LionUpdate>},
    {kLerpUpdate, DeviceType::kCuda, UpdateMany<LerpUpdate>},
};

}  // namespace
}  // namespace weft
