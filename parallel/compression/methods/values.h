// The elements of gradients and of what methods keep, which are f32 or f64.

#ifndef WEFT_PARALLEL_COMPRESSION_METHODS_VALUES_H_
#define WEFT_PARALLEL_COMPRESSION_METHODS_VALUES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/types/span.h"
#include "parallel/compression/compressor.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// Calls `function` with the elements of a contiguous f32 or f64 tensor: absl::Span<float> or absl::Span<double>.
template <class Function>
decltype(auto) OnValues(const Tensor& tensor, const Function& function) {
  if (tensor.dtype() == DType::kF64) {
    return function(absl::MakeSpan(tensor.data<double>(), tensor.num_elements()));
  }
  return function(absl::MakeSpan(tensor.data<float>(), tensor.num_elements()));
}

template <class T>
bool AllFinite(absl::Span<const T> values) {
  return std::all_of(values.begin(), values.end(), [](T value) { return std::isfinite(value); });
}

// What a part has to send: its gradient and, with error feedback, what it did not send before (state 0), in the
// gradient's memory. A gradient that is not finite stays as it is, so that its elements poison the sum.
inline void AddResidual(const GradientPart& part, bool error_feedback) {
  if (!error_feedback) return;
  OnValues(part.gradient, [&](auto values) {
    using T = typename decltype(values)::value_type;
    const T* const residual = part.state[0].template data<T>();
    for (size_t i = 0; i < values.size(); ++i) values[i] += residual[i];
  });
}

}  // namespace weft

#endif  // WEFT_PARALLEL_COMPRESSION_METHODS_VALUES_H_
