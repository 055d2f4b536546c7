#include "ops/indexing/scatter_reduce.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "ops/cpu/spans/element_blocks.h"
#include "ops/cpu/spans/indices.h"
#include "ops/cpu/spans/row_view.h"
#include "ops/op/kernel.h"
#include "runtime/base/wrapping.h"
#include "runtime/tensor/convert.h"

namespace weft {
namespace {

using Call = KernelCall<ScatterReduceAttributes, NoScalars>;

struct ReduceExtents {
  int64_t outer = 1;
  int64_t inner = 1;
  int64_t terms = 0;  // of src along the dim
  int64_t slots = 0;  // of y
  int64_t first = 0;  // y's offset
};

// NaN wins an extremum.
template <ReduceOp kReduce, class C>
C Combine(C a, C b) {
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

// What changes no result.
template <ReduceOp kReduce, class C>
C Neutral() {
  using Limits = std::numeric_limits<C>;
  if constexpr (kReduce == ReduceOp::kProduct) return C(1);
  if constexpr (kReduce == ReduceOp::kMax)
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return Limits::has_infinity ? Limits::infinity() : Limits::max();
}

// Tasks divide the columns and the outer indices, never the terms of an element: the same bits on any number
// of threads. Halves are combined in float scratch.
template <class T, ReduceOp kReduce>
void ReduceTyped(const Call& call, const ReduceExtents& n, const Tensor& x, const Tensor& index,
                 const Tensor& src, bool takes_x) {
  using C = ArithmeticType<T>;
  constexpr int64_t kColumnBlock = 64;  // as SumByIndex
  const int64_t blocks = (n.inner + kColumnBlock - 1) / kColumnBlock;
  const int64_t task_elements = std::min(n.inner, kColumnBlock) * (n.terms + n.slots);
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(1, task_elements));
  call.context.pool.ParallelFor(n.outer * blocks, grain, [&](int64_t begin, int64_t end) {
    std::vector<C> slots;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t outer = task / blocks;
      const int64_t column = task % blocks * kColumnBlock;
      const int64_t width = std::min(kColumnBlock, n.inner - column);
      const T* const start = x.data<T>() + outer * n.slots * n.inner + column;
      const T* const terms = src.data<T>() + outer * n.terms * n.inner + column;
      const int64_t* const indices = index.data<int64_t>() + outer * n.terms * n.inner + column;
      T* const to = call.outputs[0].data<T>() + outer * n.slots * n.inner + column;
      slots.assign(n.slots * width, Neutral<kReduce, C>());
      for (int64_t v = 0; takes_x && v < n.slots; ++v) {
        for (int64_t k = 0; k < width; ++k) slots[v * width + k] = static_cast<C>(start[v * n.inner + k]);
      }
      for (int64_t j = 0; j < n.terms; ++j) {
        for (int64_t k = 0; k < width; ++k) {
          const int64_t slot = indices[j * n.inner + k] - n.first;
          if (slot < 0 || slot >= n.slots) continue;
          C& value = slots[slot * width + k];
          value = Combine<kReduce, C>(value, static_cast<C>(terms[j * n.inner + k]));
        }
      }
      for (int64_t v = 0; v < n.slots; ++v) {
        for (int64_t k = 0; k < width; ++k) to[v * n.inner + k] = ConvertElement<T>(slots[v * width + k]);
      }
    }
  });
}

void ScatterReduce(const Call& call) {
  const ScatterReduceAttributes& a = call.attributes();
  const ShardBox& index_box = call.input_boxes[1];
  const Tensor index = DenseIndices(call.inputs[1], call.context);
  CheckIndices("scatter_reduce", "index", index, index_box, call.input_boxes[0].global_shape[a.dim]);
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const Tensor x = Dense(call.inputs[0], call.context);
  const Tensor src = Dense(call.inputs[2], call.context);
  ReduceExtents n;
  for (int d = 0; d < y.ndim(); ++d) {
    if (d < a.dim) n.outer *= y.shape()[d];
    if (d > a.dim) n.inner *= y.shape()[d];
  }
  n.terms = src.shape()[a.dim];
  n.slots = y.shape()[a.dim];
  n.first = call.output_boxes[0].offset[a.dim];
  // Of several pieces of the index, the first takes x in.
  const bool takes_x = index_box.offset[a.dim] == 0;
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no reductions of ", DTypeName(y.dtype()));
    } else if (a.reduce == ReduceOp::kProduct) {
      ReduceTyped<T, ReduceOp::kProduct>(call, n, x, index, src, takes_x);
    } else if (a.reduce == ReduceOp::kMax) {
      ReduceTyped<T, ReduceOp::kMax>(call, n, x, index, src, takes_x);
    } else {
      ReduceTyped<T, ReduceOp::kMin>(call, n, x, index, src, takes_x);
    }
  });
}

const RegisterKernel kRegister(kScatterReduce, DeviceType::kCpu, ScatterReduce);

}  // namespace
}  // namespace weft
