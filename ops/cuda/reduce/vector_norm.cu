#include <cuda_runtime.h>

#include "ops/cuda/blocks/result_writer.h"
#include "ops/cuda/blocks/row_math.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/reduce/reduce_dims.h"
#include "ops/cuda/reduce/reduced_gradient.h"
#include "ops/op/kernel.h"
#include "ops/reduce/vector_norm.h"

namespace weft {
namespace {

using Call = KernelCall<NormAttributes, NoScalars>;

// Not inlined: its many instructions would stand in every unrolled loop.
__device__ __attribute__((noinline)) double RaisedTo(double v, double p) { return pow(v, p); }

// The p of a norm, sorted: what is done with an element is chosen once an element.
struct Power {
  // One kernel for all kinds: the branch on it is the same for the whole grid, and the accesses wait longer.
  enum Kind { kLargest, kSmallest, kNonZeros, kAbsolutes, kSquares, kPowers };

  explicit Power(double p) : p(p) {
    if (p == kInfinityOf<double>) kind = kLargest;
    if (p == -kInfinityOf<double>) kind = kSmallest;
    if (p == 0) kind = kNonZeros;
    if (p == 1) kind = kAbsolutes;
    if (p == 2) kind = kSquares;
  }

  __device__ bool IsExtremum() const { return kind == kLargest || kind == kSmallest; }
  // What |x| = v adds.
  // In double: powers of a float leave float's range long before the root brings them back.
  __device__ double Lift(double v) const {
    if (kind == kSquares) return v * v;
    if (kind == kPowers) return RaisedTo(v, p);
    if (kind == kNonZeros) return v != 0 ? 1.0 : 0.0;
    return v;
  }
  // A nan wins.
  __device__ double Combine(double a, double b) const {
    if (!IsExtremum()) return a + b;
    const bool wins = kind == kLargest ? b > a : b < a;
    return wins || b != b ? b : a;
  }
  __device__ double Finish(double sum) const {
    if (kind == kSquares) return sqrt(sum);
    return kind == kPowers ? RaisedTo(sum, 1 / p) : sum;
  }

  double p;
  Kind kind = kPowers;
};

// The norm to a tensor of T, or its power sum to one of f64.
// The power sum is what pieces of a split tensor add up; the root comes after that, in NormFinish.
template <class T>
struct PowerReduction : PlainReduction<T, double> {
  explicit PowerReduction(const Power& power, T* norm, double* power_sum)
      : power(power), norm(norm), power_sum(power_sum) {}

  __device__ double NoState() const { return power.kind == Power::kSmallest ? kInfinityOf<double> : 0; }
  __device__ double NoRun() const { return NoState(); }
  template <class Around>
  __device__ void Take(double& run, T x, int64_t, Around) const {
    run = power.Combine(run, power.Lift(fabs(static_cast<double>(x))));
  }
  __device__ void Absorb(double& sum, double run) const { sum = power.Combine(sum, run); }
  __device__ void Merge(double& sum, double other) const { sum = power.Combine(sum, other); }
  __device__ void Write(int64_t result, double sum) const {
    if (norm != nullptr) {
      norm[result] = ConvertElement<T>(power.Finish(sum));
    } else {
      power_sum[result] = sum;
    }
  }

  Power power;
  T* norm;
  double* power_sum;
};

// How many |x| equal the extremum.
// The gradient of an extremum goes in equal parts to all elements that are it; the parts follow from this
// count.
// Counted in double: the result alone is rounded, and not to a half, which would not hold it.
template <class T>
struct TieCount : SumReduction<T, double> {
  using C = WideOf<T>;
  using Around = C;

  TieCount(const T* extrema, C* counts) : extrema(extrema), counts(counts) {}

  __device__ C Of(int64_t result) const { return static_cast<C>(extrema[result]); }
  __device__ void Take(double& run, T x, int64_t, C extremum) const {
    const C v = static_cast<C>(x);
    run += (v < 0 ? -v : v) == extremum ? 1 : 0;
  }
  __device__ void Write(int64_t result, double sum) const { counts[result] = static_cast<C>(sum); }

  const T* extrema;
  C* counts;
};

void VectorNorm(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "vector_norm", [&](auto tag) {
    using T = typename decltype(tag)::type;
    ReduceAlong(call, call.inputs[0], call.attributes().dims,
                PowerReduction<T>(Power(call.attributes().p), call.outputs[0].data<T>(), nullptr));
  });
}

void PowerSum(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "power_sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    ReduceAlong(call, call.inputs[0], call.attributes().dims,
                PowerReduction<T>(Power(call.attributes().p), nullptr, call.outputs[0].data<double>()));
  });
}

template <class T>
__global__ void FinishKernel(const double* sums, int64_t count, Power power, T* y) {
  ForEachOfGrid(count, [&](int64_t i) { y[i] = ConvertElement<T>(power.Finish(sums[i])); });
}

void NormFinish(const KernelCall<NormFinishAttributes, NoScalars>& call) {
  const Tensor sums = PackedTensor(call.inputs[0], call.context);
  const int64_t count = sums.num_elements();
  if (count == 0) return;
  VisitFloating(call.attributes().dtype, "norm_finish", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(count), FinishKernel<T>, sums.data<double>(), count,
               Power(call.attributes().p), call.outputs[0].data<T>());
  });
}

void NormTies(const Call& call) {
  const Tensor extrema = PackedTensor(call.inputs[1], call.context);
  VisitFloating(call.inputs[0].dtype(), "norm_ties", [&](auto tag) {
    using T = typename decltype(tag)::type;
    ReduceAlong(call, call.inputs[0], call.attributes().dims,
                TieCount<T>(extrema.data<T>(), call.outputs[0].data<WideOf<T>>()));
  });
}

// d|x|_p / dx * dy, 0 where y is 0, also of a dy that is infinite.
// The quotient is formed before the power: it is at most 1 for p of 1 and more, whereas |x|^(p - 1) and
// y^(p - 1) may each overflow where their quotient does not.
struct NormSlope {
  template <class C>
  __device__ C operator()(C x, C y, C dy) const {
    return y == 0 ? C(0) : Of(x, y) * dy;
  }
  template <class C>
  __device__ C Of(C x, C y) const {
    const C sign = x > 0 ? C(1) : x < 0 ? C(-1) : x;  // nan stays
    const C magnitude = x < 0 ? -x : x;
    if (power.IsExtremum()) return magnitude == y ? sign : C(0);
    if (power.kind == Power::kAbsolutes) return sign;
    if (y == 0 || x == 0) return C(0);
    if (power.kind == Power::kSquares) return x / y;
    return sign * PowOf(magnitude / y, static_cast<C>(power.p - 1));
  }

  Power power;
};

void VectorNormGrad(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "vector_norm_grad", [&](auto tag) {
    MapReducedGradientOnGpu<typename decltype(tag)::type, 2>(call, call.attributes().dims,
                                                             NormSlope{Power(call.attributes().p)});
  });
}

const RegisterKernel kRegister[] = {
    {kVectorNorm, DeviceType::kCuda, VectorNorm},
    {kVectorNormGrad, DeviceType::kCuda, VectorNormGrad},
    {kPowerSum, DeviceType::kCuda, PowerSum},
    {kNormTies, DeviceType::kCuda, NormTies},
};
const RegisterKernel kRegisterFinish(kNormFinish, DeviceType::kCuda, NormFinish);

}  // namespace
}  // namespace weft
