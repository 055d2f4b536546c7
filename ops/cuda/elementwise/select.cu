#include <cuda_runtime.h>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/elementwise/select.h"
#include "ops/op/kernel.h"
#include "ops/op/number_as.h"
#include "runtime/tensor/cuda/visit_word.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

struct Chosen {
  template <class Word>
  __device__ Word operator()(int32_t condition, Word a, Word b) const {
    return condition != 0 ? a : b;
  }
};
// Zero bits are a zero of every dtype.
struct KeptWhere {
  int32_t value;

  template <class Word>
  __device__ Word operator()(int32_t condition, Word x) const {
    return condition == value ? x : Word(0);
  }
};

// b where it is greater (or lesser) or NaN; else a, which is so where it is NaN.
// fmaxf and fminf would drop a NaN where one operand is a number.
struct ExtremeOf {
  bool largest;

  template <class C>
  __device__ C operator()(C a, C b) const {
    return (largest ? a < b : a > b) || b != b ? b : a;
  }
};
// Equal operands share the gradient in halves, so that swapping them swaps the gradients.
struct MaximumGradOf {
  template <class C>
  __device__ C operator()(C a, C b, C dy) const {
    return a < b ? C(0) : a == b ? dy / 2 : dy;
  }
};

template <class C>
struct ClampBetween {
  C min, max;

  __device__ C operator()(C x) const {
    const C raised = x < min ? min : x;
    return raised > max ? max : raised;
  }
};
template <class C>
struct ClampGradBetween {
  C min, max;

  __device__ C operator()(C x, C dy) const { return x >= min && x <= max ? dy : C(0); }
};

// Elements are moved, not looked into.
// By size, so four kernels serve all dtypes, and the bits of a NaN stay.
void Where(const Call& call) {
  VisitWord(ItemSize(call.outputs[0].dtype()), [&](auto tag) {
    using Word = typename decltype(tag)::type;
    MapElements<Word, bool, Word, Word>(call, Chosen());
  });
}

void KeepWhere(const KernelCall<KeepWhereAttributes, NoScalars>& call) {
  VisitWord(ItemSize(call.outputs[0].dtype()), [&](auto tag) {
    using Word = typename decltype(tag)::type;
    MapElements<Word, bool, Word>(call, KeptWhere{call.attributes().value ? 1 : 0});
  });
}

template <bool kLargest>
void Extreme(const Call& call) {
  VisitOrdered(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T, T>(call, ExtremeOf{kLargest});
  });
}

void MaximumGrad(const Call& call) {
  VisitFloating(call.outputs[0].dtype(), "maximum", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<T, T, T, T>(call, MaximumGradOf());
  });
}

void Clamp(const KernelCall<NoAttributes, ClampScalars>& call) {
  VisitNumeric(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ElementValue<T>;
    MapElements<T, T>(call, ClampBetween<C>{BoundAs<C>(call.scalars().min), BoundAs<C>(call.scalars().max)});
  });
}

void ClampGrad(const KernelCall<NoAttributes, ClampScalars>& call) {
  VisitFloating(call.outputs[0].dtype(), "clamp", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ElementValue<T>;
    MapElements<T, T, T>(call,
                         ClampGradBetween<C>{BoundAs<C>(call.scalars().min), BoundAs<C>(call.scalars().max)});
  });
}

const RegisterKernel kRegister[] = {
    {kWhere, DeviceType::kCuda, Where},
    {kKeepWhere, DeviceType::kCuda, KeepWhere},
    {kMaximum, DeviceType::kCuda, Extreme<true>},
    {kMinimum, DeviceType::kCuda, Extreme<false>},
    {kMaximumGrad, DeviceType::kCuda, MaximumGrad},
    {kClamp, DeviceType::kCuda, Clamp},
    {kClampGrad, DeviceType::kCuda, ClampGrad},
};

}  // namespace
}  // namespace weft
