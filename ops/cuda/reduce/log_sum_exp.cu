#include <cuda_runtime.h>

#include "ops/cuda/blocks/row_math.h"
#include "ops/cuda/blocks/row_tensors.h"
#include "ops/cuda/reduce/reduce_dims.h"
#include "ops/cuda/reduce/reduced_gradient.h"
#include "ops/op/kernel.h"
#include "ops/reduce/log_sum_exp.h"

namespace weft {
namespace {

using Call = KernelCall<ReduceAttributes, NoScalars>;

// The maximum of elements and sum exp(x - max), of no meaning where the maximum is not finite.
struct ShiftedSum {
  double sum;
  double max;
};

__device__ double FinishLogSum(double max, double sum) { return IsFiniteNumber(max) ? max + log(sum) : max; }

// A nan or an inf outdoes the rest.
// One pass with a running maximum (Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv
// 1805.02867): reading the maximum first would read x twice. Each element costs one exponential, since either
// it or the sum so far is scaled.
template <class T>
struct LogSum : PlainReduction<T, ShiftedSum> {
  using C = WideOf<T>;

  __device__ ShiftedSum NoState() const { return {0, -kInfinityOf<double>}; }
  __device__ ShiftedSum NoRun() const { return NoState(); }
  template <class Around>
  __device__ void Take(ShiftedSum& run, T element, int64_t, Around) const {
    const C x = static_cast<C>(element);
    const C max = static_cast<C>(run.max);
    // Exp of -inf is 0 anyway, but beside a maximum of -inf the difference would be NaN.
    if (max != max || x == -kInfinityOf<C>) return;
    if (x <= max) {
      run.sum += static_cast<double>(ExpFor<T>(x - max));
    } else {
      run.sum = run.sum * static_cast<double>(ExpFor<T>(max - x)) + 1;
      run.max = static_cast<double>(x);
    }
  }
  // States meet once per run of a thread, so here exponentials may be those of double.
  __device__ void Absorb(ShiftedSum& state, const ShiftedSum& run) const { Merge(state, run); }
  __device__ void Merge(ShiftedSum& a, const ShiftedSum& b) const {
    if (a.max != a.max || b.max == -kInfinityOf<double>) return;
    if (b.max <= a.max) {
      a.sum += b.sum * exp(b.max - a.max);
    } else {
      a.sum = a.sum * exp(a.max - b.max) + b.sum;
      a.max = b.max;
    }
  }
  __device__ void Write(int64_t result, const ShiftedSum& state) const {
    y[result] = ConvertElement<T>(FinishLogSum(state.max, state.sum));
  }

  T* y;
};

// sum exp(x - max), 0 where max is not finite.
// The second step where the dims are split: the maximum is the global one, so the pieces' sums add up.
template <class T>
struct SumOfExp : SumReduction<T, WideOf<T>> {
  using C = WideOf<T>;
  using Around = C;

  SumOfExp(const T* max, C* y) : max(max), y(y) {}

  __device__ C Of(int64_t result) const { return static_cast<C>(max[result]); }
  __device__ void Take(C& run, T x, int64_t, C shift) const {
    if (IsFiniteNumber(shift)) run += ExpFor<T>(static_cast<C>(x) - shift);
  }
  __device__ void Write(int64_t result, double sum) const { y[result] = static_cast<C>(sum); }

  const T* max;
  C* y;
};

void LogSumExpKernel(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "log_sum_exp", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LogSum<T> reduction;
    reduction.y = call.outputs[0].data<T>();
    ReduceAlong(call, call.inputs[0], call.attributes().dims, reduction);
  });
}

void ExpSum(const Call& call) {
  const Tensor max = PackedTensor(call.inputs[1], call.context);
  VisitFloating(call.inputs[0].dtype(), "exp_sum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    ReduceAlong(call, call.inputs[0], call.attributes().dims,
                SumOfExp<T>(max.data<T>(), call.outputs[0].data<WideOf<T>>()));
  });
}

template <class T>
__global__ void FinishKernel(const T* max, const WideOf<T>* sum, int64_t count, T* y) {
  ForEachOfGrid(count, [&](int64_t i) {
    y[i] = ConvertElement<T>(FinishLogSum(ConvertElement<double>(max[i]), static_cast<double>(sum[i])));
  });
}

void LogSumExpFinish(const KernelCall<NoAttributes, NoScalars>& call) {
  const Tensor max = PackedTensor(call.inputs[0], call.context);
  const Tensor sum = PackedTensor(call.inputs[1], call.context);
  const int64_t count = max.num_elements();
  if (count == 0) return;
  VisitFloating(max.dtype(), "log_sum_exp_finish", [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(count), FinishKernel<T>, max.data<T>(), sum.data<WideOf<T>>(),
               count, call.outputs[0].data<T>());
  });
}

struct LogSumExpSlope {
  template <class C>
  __device__ C operator()(C x, C y, C dy) const {
    return y == -kInfinityOf<C> ? C(0) : ExpFor<C>(x - y) * dy;
  }
};

void LogSumExpGrad(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "log_sum_exp_grad", [&](auto tag) {
    MapReducedGradientOnGpu<typename decltype(tag)::type, 2>(call, call.attributes().dims, LogSumExpSlope());
  });
}

const RegisterKernel kRegister[] = {
    {kLogSumExp, DeviceType::kCuda, LogSumExpKernel},
    {kLogSumExpGrad, DeviceType::kCuda, LogSumExpGrad},
    {kExpSum, DeviceType::kCuda, ExpSum},
};
const RegisterKernel kRegisterFinish(kLogSumExpFinish, DeviceType::kCuda, LogSumExpFinish);

}  // namespace
}  // namespace weft
