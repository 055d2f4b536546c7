#include <cuda_runtime.h>

#include <limits>
#include <type_traits>

#include "ops/cuda/blocks/indices.h"
#include "ops/cuda/blocks/kernel_stream.h"
#include "ops/cuda/blocks/row_pack.h"
#include "ops/indexing/scatter_reduce.h"
#include "ops/op/kernel.h"
#include "runtime/base/wrapping.h"
#include "runtime/device/cuda/launch.h"
#include "runtime/tensor/copy.h"
#include "runtime/tensor/cuda/grid_loop.h"

namespace weft {
namespace {

using Call = KernelCall<ScatterReduceAttributes, NoScalars>;

struct ReduceExtents {
  int64_t outer = 1;
  int64_t inner = 1;
  int64_t terms = 0;  // of src along the dim
  CudaSlots slots;    // of y
};

// NaN wins an extremum; integers wrap.
template <ReduceOp kReduce, class C>
__device__ C Combine(C a, C b) {
  if constexpr (kReduce == ReduceOp::kProduct) {
    if constexpr (std::is_integral_v<C>) {
      return WrappingMul(a, b);
    } else {
      return a * b;
    }
  } else if constexpr (kReduce == ReduceOp::kMax) {
    return b > a || b != b ? b : a;
  } else {
    return b < a || b != b ? b : a;
  }
}

// A column is one thread's: it combines in memory that nobody else touches, in order. `y` has x's elements, or
// what changes no result.
template <class T, ReduceOp kReduce>
__global__ void ReduceColumnsKernel(ReduceExtents n, const int64_t* index, const T* src, WideOf<T> bad,
                                    WideOf<T>* y) {
  using C = WideOf<T>;
  ForEachOfGrid(n.outer * n.inner, [&](int64_t column) {
    const int64_t outer = column / n.inner;
    const int64_t k = column % n.inner;
    const int64_t from = outer * n.terms * n.inner + k;
    C* const to = y + outer * n.slots.count * n.inner + k;
    for (int64_t j = 0; j < n.terms; ++j) {
      const int64_t at = index[from + j * n.inner];
      const int64_t slot = n.slots.Find(at);
      if (slot < 0) continue;
      C& value = to[slot * n.inner];
      value = Combine<kReduce, C>(value, n.slots.IsBad(at) ? bad : static_cast<C>(src[from + j * n.inner]));
    }
  });
}

template <class C>
__global__ void FillKernel(C* y, C value, int64_t count) {
  ForEachOfGrid(count, [&](int64_t i) { y[i] = value; });
}

template <ReduceOp kReduce, class C>
C Neutral() {
  using Limits = std::numeric_limits<C>;
  if constexpr (kReduce == ReduceOp::kProduct) return C(1);
  if constexpr (kReduce == ReduceOp::kMax)
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return Limits::has_infinity ? Limits::infinity() : Limits::max();
}

template <class T, ReduceOp kReduce>
void ReduceTyped(const Call& call, const ReduceExtents& n, bool takes_x) {
  using C = WideOf<T>;
  const Tensor& y = call.outputs[0];
  // Of halves, what has been combined so far is float, so it grows beside y; the copy rounds it once.
  const bool direct = std::is_same_v<T, C>;
  const Tensor slots = direct ? y : Tensor::Empty(call.context.allocator, kDTypeOf<C>, y.shape());
  if (takes_x) {
    CopyTensor(call.inputs[0], slots);
  } else {
    // Not FillTensor, whose value is a double: it does not hold the greatest i64.
    LaunchCuda(KernelStream(call), GridOver(y.num_elements()), FillKernel<C>, slots.data<C>(),
               Neutral<kReduce, C>(), y.num_elements());
  }
  if (n.terms > 0) {
    const Tensor index = CudaIndices(call.inputs[1], call.context.allocator);
    const Tensor src = CudaDense(call.inputs[2], call.context.allocator);
    LaunchCuda(KernelStream(call), GridOver(n.outer * n.inner), ReduceColumnsKernel<T, kReduce>, n,
               index.data<int64_t>(), src.data<T>(), BadElement<C>(), slots.data<C>());
  }
  if (!direct) CopyTensor(slots, y);
}

void ScatterReduce(const Call& call) {
  const ScatterReduceAttributes& a = call.attributes();
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  ReduceExtents n = {.slots = CudaSlots(call.output_boxes[0], a.dim, y.dtype())};
  for (int d = 0; d < y.ndim(); ++d) {
    if (d < a.dim) n.outer *= y.shape()[d];
    if (d > a.dim) n.inner *= y.shape()[d];
  }
  n.terms = call.inputs[2].shape()[a.dim];
  const bool takes_x = call.input_boxes[1].offset[a.dim] == 0;
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no reductions of ", DTypeName(y.dtype()));
    } else if (a.reduce == ReduceOp::kProduct) {
      ReduceTyped<T, ReduceOp::kProduct>(call, n, takes_x);
    } else if (a.reduce == ReduceOp::kMax) {
      ReduceTyped<T, ReduceOp::kMax>(call, n, takes_x);
    } else {
      ReduceTyped<T, ReduceOp::kMin>(call, n, takes_x);
    }
  });
}

const RegisterKernel kRegister(kScatterReduce, DeviceType::kCuda, ScatterReduce);

}  // namespace
}  // namespace weft
