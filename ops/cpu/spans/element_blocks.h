#ifndef WEFT_OPS_CPU_SPANS_ELEMENT_BLOCKS_H_
#define WEFT_OPS_CPU_SPANS_ELEMENT_BLOCKS_H_

#include <cstdint>
#include <type_traits>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "runtime/base/dtype.h"
#include "runtime/base/thread_pool.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// One tensor of an elementwise kernel. Borrows the tensor.
struct ElementStream {
  enum Use { kRead, kWrite, kUpdate };  // kUpdate: read and written back

  const Tensor& tensor;  // its shape broadcasts to the common one; exactly that if it is written
  Use use = kRead;
};

// What elementwise kernels compute in: float for f32, bf16 and f16, else the type itself.
template <class T>
using ArithmeticType =
    std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

inline constexpr int kMaxElementStreams = 6;

// spans[i] holds `n` values of stream i: elements [first, first + n) in row-major order of the common shape.
template <class C>
using ElementBlockBody = absl::FunctionRef<void(C* const* spans, int64_t first, int64_t n)>;

// Feeds the elements of strided tensors to `body` in blocks, as contiguous values of type C (float, double,
// int32_t, int64_t, or BFloat16 where all tensors are that), and writes back what it changes. Elements that
// lie so already are passed in place, others go through buffers that stay in cache; so one loop over plain
// arrays serves all dtypes, strides and broadcasts.
//
// Threads: blocks run in parallel on `pool`. The cut follows from the shape and strides alone, and `body`
//          must treat every element alike, so the result does not depend on it.
// Errors: InvalidArgument if a tensor does not broadcast to `shape`.
template <class C>
void ForEachElementBlock(ThreadPool& pool, const Shape& shape, absl::Span<const ElementStream> streams,
                         ElementBlockBody<C> body);

extern template void ForEachElementBlock<float>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                                ElementBlockBody<float>);
extern template void ForEachElementBlock<double>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                                 ElementBlockBody<double>);
extern template void ForEachElementBlock<BFloat16>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                                   ElementBlockBody<BFloat16>);
extern template void ForEachElementBlock<int32_t>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                                  ElementBlockBody<int32_t>);
extern template void ForEachElementBlock<int64_t>(ThreadPool&, const Shape&, absl::Span<const ElementStream>,
                                                  ElementBlockBody<int64_t>);

// Calls `function(TypeTag<C>())` with the ArithmeticType of a numeric dtype.
// Errors: Internal for u8 and bool: inference refuses them.
template <class Function>
void VisitArithmeticType(DType dtype, Function&& function) {
  VisitDType(dtype, [&](auto tag) {
    using C = ArithmeticType<typename decltype(tag)::type>;
    if constexpr (std::is_same_v<C, uint8_t> || std::is_same_v<C, bool>) {
      WEFT_CHECK(false, "no arithmetic on ", DTypeName(dtype));
    } else {
      function(TypeTag<C>());
    }
  });
}

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_ELEMENT_BLOCKS_H_
