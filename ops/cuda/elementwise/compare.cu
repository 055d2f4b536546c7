#include <cuda_runtime.h>

#include "ops/cuda/blocks/map_elements.h"
#include "ops/elementwise/compare.h"
#include "ops/op/kernel.h"

namespace weft {
namespace {

using Call = KernelCall<NoAttributes, NoScalars>;

// Flags rather than types: what is compared costs more than how.
struct EqualTo {
  bool negated;

  template <class C>
  __device__ bool operator()(C a, C b) const {
    return (a == b) != negated;
  }
};
struct LessThan {
  bool or_equal;

  template <class C>
  __device__ bool operator()(C a, C b) const {
    return a < b || (or_equal && a == b);
  }
};

template <class Comparison>
void Compare(const Call& call, const Tensor& a, const Tensor& b, Comparison comparison) {
  VisitOrdered(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapOperands(KernelStream(call), call.outputs[0].shape(), AssignResult<Comparison>{comparison},
                Writes<bool>{call.outputs[0]}, Reads<T>{a}, Reads<T>{b});
  });
}

template <bool kNegated>
void Equality(const Call& call) {
  Compare(call, call.inputs[0], call.inputs[1], EqualTo{kNegated});
}

template <bool kOrEqual>
void Less(const Call& call) {
  Compare(call, call.inputs[0], call.inputs[1], LessThan{kOrEqual});
}

// b < a.
// Not !(a <= b), which a NaN would make true; and one kernel less.
template <bool kOrEqual>
void Greater(const Call& call) {
  Compare(call, call.inputs[1], call.inputs[0], LessThan{kOrEqual});
}

struct HasKind {
  bool finite;  // else NaN

  template <class C>
  __device__ bool operator()(C x) const {
    // An infinity less itself is NaN, so neither is the other.
    return finite ? x - x == 0 : x != x;
  }
};

template <bool kFinite>
void Classify(const Call& call) {
  VisitFloating(call.inputs[0].dtype(), "classify", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapElements<bool, T>(call, HasKind{kFinite});
  });
}

const RegisterKernel kRegister[] = {
    {kEqual, DeviceType::kCuda, Equality<false>},  {kNotEqual, DeviceType::kCuda, Equality<true>},
    {kLess, DeviceType::kCuda, Less<false>},       {kLessEqual, DeviceType::kCuda, Less<true>},
    {kGreater, DeviceType::kCuda, Greater<false>}, {kGreaterEqual, DeviceType::kCuda, Greater<true>},
    {kIsNan, DeviceType::kCuda, Classify<false>},  {kIsFinite, DeviceType::kCuda, Classify<true>},
};

}  // namespace
}  // namespace weft
