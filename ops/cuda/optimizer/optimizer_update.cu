#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/cuda/blocks/map_many.h"
#include "ops/cuda/blocks/rounded.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/op/kernel.h"
#include "ops/optimizer/adamw_constants.h"
#include "ops/optimizer/optimizer_update.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// A scalar of f32 or f64 on the device.
// Kernels read it there: the norm of a step is never waited for on the host.
struct DeviceScalar {
  const void* data = nullptr;
  bool is_double = false;

  DeviceScalar() = default;
  explicit DeviceScalar(const Tensor& tensor)
      : data(tensor.data()), is_double(tensor.dtype() == DType::kF64) {}

  __device__ double Get() const {
    return is_double ? *static_cast<const double*>(data) : *static_cast<const float*>(data);
  }
};

// An update of one pass, skipped if the clip factor is not finite. Given is what the host knows of a step;
// its At(factor) makes the step where the rest is known, on the device.
// Whether a step is skipped is decided by each kernel for itself, from the same number, so no state can get
// ahead of another.
template <class Given>
struct Clipped {
  Given given;
  DeviceScalar clip;

  __device__ bool Skips() const {
    const double factor = clip.Get();
    return factor - factor != 0;
  }
  __device__ auto StartAt(int64_t) const { return given.At(clip.Get()); }
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

// Whether VisitUpdate takes gradients of dtype `g` beside parameters of `p` as they are.
bool TakesGradient(DType p, DType g) {
  return g == p || g == (p == DType::kF64 ? DType::kF64 : DType::kF32) ||
         (p == DType::kF32 && (g == DType::kBF16 || g == DType::kF16));
}

// What tells the three updates apart: how much state lies between p and g among the operands, and what the
// host knows of a step.

template <class Scalars>
using UpdateKernelCall = KernelCall<NoAttributes, Scalars>;

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

template <class Update>
using UpdateCall = UpdateKernelCall<typename Update::Scalars>;

// The clipped step of a call on elements of P.
template <class Update, class P>
auto ClippedStep(const UpdateCall<Update>& call) {
  const auto given = Update::template Given<ElementValue<P>>(call);
  return Clipped<std::decay_t<decltype(given)>>{given, DeviceScalar(call.inputs[Update::kNumState + 2])};
}

template <class Update>
void UpdateOne(const UpdateCall<Update>& call) {
  VisitUpdate(call, call.inputs[Update::kNumState + 1], [&](auto p_tag, auto g_tag, const Tensor& g) {
    using P = typename decltype(p_tag)::type;
    using G = typename decltype(g_tag)::type;
    [&]<size_t... kState>(std::index_sequence<kState...>) {
      MapOperands(KernelStream(call), call.outputs[0].shape(), ClippedStep<Update, P>(call),
                  Updates<P>{call.outputs[kState]}..., Reads<G>{g});
    }
    (std::make_index_sequence<Update::kNumState + 1>());
  });
}

// One of several operands of one type.
template <class T, size_t>
using UpdatePointer = MapPointer<T, MapUse::kUpdate>;

// Of parameters of P with gradients of G, all contiguous.
template <class Update, class P, class G, size_t... kState>
void UpdateAlike(absl::Span<const KernelCallBase* const> calls, std::index_sequence<kState...>) {
  using Function = decltype(ClippedStep<Update, P>(std::declval<const UpdateCall<Update>&>()));
  MapMany<Function, UpdatePointer<P, kState>..., MapPointer<G, MapUse::kRead>> many(KernelStream(*calls[0]));
  for (const KernelCallBase* base : calls) {
    const UpdateCall<Update> call(*base);
    many.Add(call.outputs[0].num_elements(), ClippedStep<Update, P>(call),
             Updates<P>{call.outputs[kState]}.pointer()...,
             Reads<G>{call.inputs[Update::kNumState + 1]}.pointer());
  }
  many.Finish();
}

// Few launches for each pair of dtypes; what does not lie so is updated by itself.
// A model has many small parameters, whose launches would take longer than their work: the chunks are those
// of Apex's multi_tensor_apply.
template <class Update>
void UpdateMany(absl::Span<const KernelCallBase> calls) {
  const auto gradient = [](const KernelCallBase& call) -> const Tensor& {
    return call.inputs[Update::kNumState + 1];
  };
  std::map<std::pair<DType, DType>, std::vector<const KernelCallBase*>> by_dtypes;
  for (const KernelCallBase& call : calls) {
    const Tensor& g = gradient(call);
    const DType p = call.outputs[0].dtype();
    bool alike = TakesGradient(p, g.dtype()) && g.IsContiguous();
    for (const Tensor& tensor : call.outputs) alike = alike && tensor.IsContiguous();
    if (alike) {
      by_dtypes[{p, g.dtype()}].push_back(&call);
    } else {
      UpdateOne<Update>(UpdateCall<Update>(call));
    }
  }
  for (const auto& [dtypes, alike] : by_dtypes) {
    VisitUpdate(*alike[0], gradient(*alike[0]), [&](auto p_tag, auto g_tag, const Tensor&) {
      UpdateAlike<Update, typename decltype(p_tag)::type, typename decltype(g_tag)::type>(
          alike, std::make_index_sequence<Update::kNumState + 1>());
    });
  }
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
    {kClipFactor, DeviceType::kCuda, ClipFactor},
    {kAccumulate, DeviceType::kCuda, Accumulate},
    {kAddAll, DeviceType::kCuda, AddAll},
};
const RegisterBatchKernel kRegisterBatch[] = {
    {kAdamWUpdate, DeviceType::kCuda, UpdateMany<AdamWUpdate>},
    {kSgdUpdate, DeviceType::kCuda, UpdateMany<SgdUpdate>},
    {kMomentumUpdate, DeviceType::kCuda, UpdateMany<MomentumUpdate>},
};

}  // namespace
}  // namespace weft
