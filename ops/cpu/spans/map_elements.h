#ifndef WEFT_OPS_CPU_SPANS_MAP_ELEMENTS_H_
#define WEFT_OPS_CPU_SPANS_MAP_ELEMENTS_H_

#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "ops/cpu/spans/element_blocks.h"
#include "ops/op/kernel_call.h"
#include "ops/op/number_as.h"
#include "runtime/base/wrapping.h"

namespace weft {

// Kernels of ops whose output i follows from the operands' elements i: C is the type that they compute in, as
// in ForEachElementBlock, which converts from and to the operands' and the output's own dtypes and
// broadcasts.

// Runs span(x0, x1, ..., y, n) over blocks of `kNumInputs` operands and the output.
template <class C, int kNumInputs, class Span>
void MapSpans(const KernelCallBase& call, const Span& span) {
  const Tensor& y = call.outputs[0];
  absl::InlinedVector<ElementStream, kNumInputs + 1> streams;
  for (int i = 0; i < kNumInputs; ++i) streams.push_back({call.inputs[i]});
  streams.push_back({y, ElementStream::kWrite});
  ForEachElementBlock<C>(call.context.pool, y.shape(), streams, [&](C* const* spans, int64_t, int64_t n) {
    [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
      span(static_cast<const C*>(spans[kIndex])..., spans[kNumInputs], n);
    }
    (std::make_index_sequence<kNumInputs>());
  });
}

// y[i] = function(x[i]...), `function` by value: what it holds then stays in registers.
template <class C, class Function, class... X>
void ApplyToSpan(Function function, int64_t n, C* y, const X*... x) {
  for (int64_t i = 0; i < n; ++i) y[i] = function(x[i]...);
}

// The same for a function of one element of each operand.
template <class C, int kNumInputs = 1, class Function>
void MapElements(const KernelCallBase& call, const Function& function) {
  if constexpr (kNumInputs == 1) {
    MapSpans<C, 1>(call, [&](const C* x, C* y, int64_t n) { ApplyToSpan(function, n, y, x); });
  } else if constexpr (kNumInputs == 2) {
    MapSpans<C, 2>(call, [&](const C* a, const C* b, C* y, int64_t n) { ApplyToSpan(function, n, y, a, b); });
  } else {
    MapSpans<C, 3>(call, [&](const C* a, const C* b, const C* c, C* y, int64_t n) {
      ApplyToSpan(function, n, y, a, b, c);
    });
  }
}

// Calls `function(TypeTag<C>())` with a type that holds every value of the dtype and that blocks may have:
// its ArithmeticType, or int32_t for u8 and bool.
template <class Function>
void VisitElementType(DType dtype, Function&& function) {
  if (dtype == DType::kU8 || dtype == DType::kBool) {
    function(TypeTag<int32_t>());
  } else {
    VisitArithmeticType(dtype, function);
  }
}

// The same for floating dtypes: float or double.
template <class Function>
void VisitFloatingElementType(DType dtype, Function&& function) {
  if (dtype == DType::kF64) {
    function(TypeTag<double>());
  } else {
    function(TypeTag<float>());
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_MAP_ELEMENTS_H_
