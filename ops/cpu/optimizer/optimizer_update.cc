#include "ops/optimizer/optimizer_update.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/container/inlined_vector.h"
#include "ops/cpu/optimizer/adamw_span.h"
#include "ops/cpu/spans/element_blocks.h"
#include "ops/cpu/spans/float_spans.h"
#include "ops/cpu/spans/parallel_copy.h"
#include "ops/op/kernel.h"
#include "ops/optimizer/lion_constants.h"

namespace weft {
namespace {

// A scalar of f32 or f64.
double ScalarOf(const Tensor& tensor) {
  return tensor.dtype() == DType::kF64 ? *tensor.data<double>() : static_cast<double>(*tensor.data<float>());
}

// Updates p and its state in place: make(TypeTag<C>(), clip) gives what is done with spans of them and of the
// gradient in C, p's ArithmeticType. Operands are p, its state, the gradient and the clip factor, in this
// order; where that is not finite, the step is skipped.
template <class MakeBody>
void UpdateElements(const KernelCallBase& call, const MakeBody& make) {
  const size_t gradient = call.outputs.size();
  const double clip = ScalarOf(call.inputs[gradient + 1]);
  // A step whose gradients overflowed leaves p and its state as they were, and the host need not know.
  if (!std::isfinite(clip)) return;
  absl::InlinedVector<ElementStream, kMaxElementStreams> streams;
  for (const Tensor& written : call.outputs) streams.push_back({written, ElementStream::kUpdate});
  streams.push_back({call.inputs[gradient]});
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    // Inference admits floating dtypes only.
    if constexpr (std::is_floating_point_v<C>) {
      ForEachElementBlock<C>(call.context.pool, call.outputs[0].shape(), streams, make(tag, clip));
    }
  });
}

void AdamWSpan(const AdamWConstants<float>& c, float* p, float* m, float* v, const float* g, int64_t n) {
  AdamWFloatSpan(c, p, m, v, g, n);
}

void AdamWSpan(const AdamWConstants<double>& c, double* p, double* m, double* v, const double* g, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double gradient = g[i] * c.clip;
    m[i] += (gradient - m[i]) * c.gain1;
    v[i] = v[i] * c.beta2 + gradient * gradient * c.gain2;
    p[i] = p[i] * c.decay - c.rate * (m[i] / (std::sqrt(v[i]) * c.correction2 + c.eps));
  }
}

void CountUpdate(const KernelCall<NoAttributes, NoScalars>& call) {
  if (std::isfinite(ScalarOf(call.inputs[1]))) ++*call.outputs[0].data<int64_t>();
}

// Compiled without fused multiply-adds.
// The rates are made once per step in double, the same on every device; AdamWRatesOf is shared with CUDA,
// which rounds by its own functions.
struct PlainMath {
  static double Mul(double a, double b) { return a * b; }
  static double Add(double a, double b) { return a + b; }
  static double Sqrt(double a) { return std::sqrt(a); }
};

void AdamWRatesOfCount(const KernelCall<NoAttributes, AdamWRatesScalars>& call) {
  const AdamWRates rates = AdamWRatesOf<PlainMath>(call.scalars(), *call.inputs[0].data<int64_t>());
  double* const r = call.outputs[0].data<double>();
  r[0] = rates.rate;
  r[1] = rates.correction2;
}

void AdamWUpdate(const KernelCall<NoAttributes, AdamWScalars>& call) {
  const Tensor& r = call.inputs[5];
  const double rate = r.data<double>()[0];
  const double correction2 = r.data<double>()[r.strides()[0]];
  UpdateElements(call, [&]<class C>(TypeTag<C>, double clip) {
    const AdamWConstants<C> constants = MakeAdamWConstants<C>(call.scalars(), clip, rate, correction2);
    return [constants](C* const* spans, int64_t, int64_t n) {
      AdamWSpan(constants, spans[0], spans[1], spans[2], spans[3], n);
    };
  });
}

// Decay is part of the gradient here, unlike AdamW's, which is decoupled from it.
void SgdUpdate(const KernelCall<NoAttributes, SgdScalars>& call) {
  UpdateElements(call, [&]<class C>(TypeTag<C>, double clip) {
    const C factor = static_cast<C>(clip);
    const C rate = static_cast<C>(call.scalars().lr);
    const C decay = static_cast<C>(call.scalars().weight_decay);
    return [=](C* const* spans, int64_t, int64_t n) {
      C* const p = spans[0];
      const C* const g = spans[1];
      for (int64_t i = 0; i < n; ++i) p[i] -= rate * (g[i] * factor + decay * p[i]);
    };
  });
}

void MomentumUpdate(const KernelCall<NoAttributes, MomentumScalars>& call) {
  UpdateElements(call, [&]<class C>(TypeTag<C>, double clip) {
    const C factor = static_cast<C>(clip);
    const C rate = static_cast<C>(call.scalars().lr);
    const C momentum = static_cast<C>(call.scalars().momentum);
    const C decay = static_cast<C>(call.scalars().weight_decay);
    return [=](C* const* spans, int64_t, int64_t n) {
      C* const p = spans[0];
      C* const b = spans[1];
      const C* const g = spans[2];
      for (int64_t i = 0; i < n; ++i) {
        b[i] = momentum * b[i] + (g[i] * factor + decay * p[i]);
        p[i] -= rate * b[i];
      }
    };
  });
}

void NesterovUpdate(const KernelCall<NoAttributes, MomentumScalars>& call) {
  UpdateElements(call, [&]<class C>(TypeTag<C>, double clip) {
    const C factor = static_cast<C>(clip);
    const C rate = static_cast<C>(call.scalars().lr);
    const C momentum = static_cast<C>(call.scalars().momentum);
    const C decay = static_cast<C>(call.scalars().weight_decay);
    return [=](C* const* spans, int64_t, int64_t n) {
      C* const p = spans[0];
      C* const b = spans[1];
      const C* const g = spans[2];
      for (int64_t i = 0; i < n; ++i) {
        const C gradient = g[i] * factor + decay * p[i];
        b[i] = momentum * b[i] + gradient;
        p[i] -= rate * (gradient + momentum * b[i]);
      }
    };
  });
}

void LionUpdate(const KernelCall<NoAttributes, LionScalars>& call) {
  UpdateElements(call, [&]<class C>(TypeTag<C>, double clip) {
    const LionConstants<C> c = MakeLionConstants<C>(call.scalars(), clip);
    return [c](C* const* spans, int64_t, int64_t n) {
      C* const p = spans[0];
      C* const m = spans[1];
      const C* const g = spans[2];
      for (int64_t i = 0; i < n; ++i) {
        const C gradient = g[i] * c.clip;
        p[i] = p[i] * c.decay - c.rate * SignOf(c.beta1 * m[i] + c.gain1 * gradient);
        m[i] = c.beta2 * m[i] + c.gain2 * gradient;
      }
    };
  });
}

// The weight stands where other updates have the clip factor.
void LerpUpdate(const KernelCall<NoAttributes, NoScalars>& call) {
  UpdateElements(call, [&]<class C>(TypeTag<C>, double weight) {
    const C w = static_cast<C>(weight);
    return [w](C* const* spans, int64_t, int64_t n) {
      C* const m = spans[0];
      const C* const x = spans[1];
      for (int64_t i = 0; i < n; ++i) m[i] += (x[i] - m[i]) * w;
    };
  });
}

// 1e-6 keeps a norm of 0 from being a divisor; PyTorch's clip_grad_norm_ has the same.
void ClipFactor(const KernelCall<NoAttributes, ClipScalars>& call) {
  const double x = ScalarOf(call.inputs[0]);
  double factor = std::numeric_limits<double>::quiet_NaN();
  if (std::isfinite(x)) factor = std::min(1.0, call.scalars().max_norm / (std::sqrt(x) + 1e-6));
  VisitFloating(call.outputs[0].dtype(), "clip_factor", [&](auto tag) {
    using T = typename decltype(tag)::type;
    *call.outputs[0].data<T>() = static_cast<T>(factor);
  });
}

// acc += x.
// For halves the sum is made in float and rounded to acc's dtype at every call: whoever adds many
// terms keeps acc in f32.
void AddTo(ThreadPool& pool, const Tensor& acc, const Tensor& x) {
  VisitArithmeticType(acc.dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    ForEachElementBlock<C>(pool, acc.shape(), {{acc, ElementStream::kUpdate}, {x}},
                           [](C* const* spans, int64_t, int64_t n) {
                             if constexpr (std::is_same_v<C, float>) {
                               FloatSpan(BinaryFunction::kAdd)(spans[0], spans[1], spans[0], n);
                             } else {
                               for (int64_t i = 0; i < n; ++i) spans[0][i] += spans[1][i];
                             }
                           });
  });
}

void Accumulate(const KernelCall<NoAttributes, NoScalars>& call) {
  AddTo(call.context.pool, call.outputs[0], call.inputs[1]);
}

// By one add after the other, as the calls of Add that it stands for: the same bits.
void AddAll(const KernelCall<NoAttributes, NoScalars>& call) {
  const Tensor& y = call.outputs[0];
  ParallelCopy(call.context.pool, call.inputs[0], y);
  for (const Tensor& x : call.inputs.subspan(1)) AddTo(call.context.pool, y, x);
}

const RegisterKernel kRegister[] = {
    {kCountUpdate, DeviceType::kCpu, CountUpdate},
    {kAdamWRates, DeviceType::kCpu, AdamWRatesOfCount},
    {kAdamWUpdate, DeviceType::kCpu, AdamWUpdate},
    {kSgdUpdate, DeviceType::kCpu, SgdUpdate},
    {kMomentumUpdate, DeviceType::kCpu, MomentumUpdate},
    {kClipFactor, DeviceType::kCpu, ClipFactor},
    {kNesterovUpdate, DeviceType::kCpu, NesterovUpdate},
    {kLionUpdate, DeviceType::kCpu, LionUpdate},
    {kLerpUpdate, DeviceType::kCpu, LerpUpdate},
    {kAccumulate, DeviceType::kCpu, Accumulate},
    {kAddAll, DeviceType::kCpu, AddAll},
};

}  // namespace
}  // namespace weft
