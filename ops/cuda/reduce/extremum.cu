#include <cuda_runtime.h>

#include <limits>

#include "ops/cuda/blocks/result_writer.h"
#include "ops/cuda/reduce/reduce_dims.h"
#include "ops/op/kernel.h"
#include "ops/reduce/reduce.h"

// Reductions that are not sums: extrema and products.
// Extrema round nothing, so the order cannot show but in the sign of a zero; they stay in the compute type.

namespace weft {
namespace {

using Call = KernelCall<ReduceAttributes, NoScalars>;

// The largest or the smallest; a NaN stays.
template <class T>
struct Extremum : PlainReduction<T, WideOf<T>> {
  using C = WideOf<T>;
  using Limits = std::numeric_limits<C>;

  __device__ C NoState() const {
    // Integers have no infinity: what no element is below, or above, takes its place.
    constexpr C kLeast = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    constexpr C kMost = Limits::has_infinity ? Limits::infinity() : Limits::max();
    return largest ? kLeast : kMost;
  }
  __device__ C NoRun() const { return NoState(); }
  template <class Around>
  __device__ void Take(C& extremum, T x, int64_t, Around) const {
    Merge(extremum, ConvertElement<C>(x));
  }
  __device__ void Absorb(C& extremum, C run) const { Merge(extremum, run); }
  __device__ void Merge(C& a, C b) const {
    const bool wins = largest ? b > a : b < a;
    if (wins || b != b) a = b;
  }
  __device__ void Write(int64_t result, C extremum) const { y[result] = ConvertElement<T>(extremum); }

  T* y;
  bool largest;
};

// Products leave the range of float long before the result does.
template <class T>
struct Product : PlainReduction<T, std::conditional_t<std::is_integral_v<T>, uint64_t, double>> {
  using Wide = std::conditional_t<std::is_integral_v<T>, uint64_t, double>;

  __device__ Wide NoState() const { return 1; }
  __device__ Wide NoRun() const { return 1; }
  template <class Around>
  __device__ void Take(Wide& product, T x, int64_t, Around) const {
    product *= ConvertElement<Wide>(x);
  }
  __device__ void Absorb(Wide& product, Wide run) const { product *= run; }
  __device__ void Merge(Wide& product, Wide other) const { product *= other; }
  __device__ void Write(int64_t result, Wide product) const {
    if constexpr (std::is_integral_v<T>) {
      y[result] = static_cast<T>(product);
    } else {
      y[result] = ConvertElement<T>(product);
    }
  }

  T* y;
};

template <bool kLargest>
void ReduceExtremum(const Call& call) {
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    Extremum<T> reduction;
    reduction.y = call.outputs[0].data<T>();
    reduction.largest = kLargest;
    ReduceAlong(call, call.inputs[0], call.attributes().dims, reduction);
  });
}

void Prod(const Call& call) {
  VisitDType(call.inputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no products of ", DTypeName(call.inputs[0].dtype()));
    } else {
      Product<T> reduction;
      reduction.y = call.outputs[0].data<T>();
      ReduceAlong(call, call.inputs[0], call.attributes().dims, reduction);
    }
  });
}

const RegisterKernel kRegister[] = {
    {kReduceMax, DeviceType::kCuda, ReduceExtremum<true>},
    {kReduceMin, DeviceType::kCuda, ReduceExtremum<false>},
    {kProd, DeviceType::kCuda, Prod},
};

}  // namespace
}  // namespace weft
