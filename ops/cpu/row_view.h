#ifndef WEFT_OPS_CPU_ROW_VIEW_H_
#define WEFT_OPS_CPU_ROW_VIEW_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "ops/kernel_call.h"
#include "runtime/tensor/convert_spans.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// The type that kernels on rows of T compute in: bf16 and f16 are for storage only.
template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

// A tensor as rows: its leading dims merged, its last dim dense. A handle, as Tensor is.
struct RowView {
  Tensor tensor;  // [num_rows, num_columns], stride 1 along the columns
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  int64_t stride = 0;  // between rows, in elements
};

// Cost: none where the strides allow it (row-major tensors, slices of their last dim), else one copy.
RowView RowsOf(const Tensor& tensor, KernelContext& context);

// `tensor` itself where it is row-major, else a copy that is.
Tensor Dense(const Tensor& tensor, KernelContext& context);

// Cuts rows into blocks of some 16K elements, by the shape alone, and runs them on the pool.
void ParallelForRows(KernelContext& context, int64_t num_rows, int64_t num_columns,
                     absl::FunctionRef<void(int64_t begin, int64_t end)> body);

// Rows of T for reading in the compute type: in place for f32 and f64, else widened into one row of scratch,
// which the next Read overwrites. One for each task.
template <class T>
class RowReader {
 public:
  using C = ComputeType<T>;

  explicit RowReader(const RowView& view)
      : data_(view.tensor.data<T>()), stride_(view.stride), num_columns_(view.num_columns) {
    if constexpr (!std::is_same_v<T, C>) scratch_.resize(num_columns_);
  }

  const C* Read(int64_t row) {
    const T* from = data_ + row * stride_;
    if constexpr (std::is_same_v<T, C>) {
      return from;
    } else {
      FetchNext(from);
      ConvertSpan(from, scratch_.data(), num_columns_);
      return scratch_.data();
    }
  }

 private:
  // The row after `from` into the cache, while this one is computed with. Beyond the last row it asks for
  // what nobody reads, which costs nothing.
  void FetchNext(const T* from) const {
    constexpr int64_t kMostBytes = 8192;
    const char* const next = reinterpret_cast<const char*>(from + stride_);
    const int64_t num_bytes = std::min<int64_t>(num_columns_ * sizeof(T), kMostBytes);
    for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(next + i);
  }

  const T* data_;
  int64_t stride_;
  int64_t num_columns_;
  std::vector<C> scratch_;
};

// Rows of a row-major tensor of T for writing in the compute type: fill Row(i), then call Done.
template <class T>
class RowWriter {
 public:
  using C = ComputeType<T>;

  RowWriter(const Tensor& tensor, int64_t num_columns) : data_(tensor.data<T>()), num_columns_(num_columns) {
    if constexpr (!std::is_same_v<T, C>) scratch_.resize(num_columns_);
  }

  C* Row(int64_t row) {
    to_ = data_ + row * num_columns_;
    if constexpr (std::is_same_v<T, C>) {
      return to_;
    } else {
      return scratch_.data();
    }
  }

  void Done() {
    if constexpr (!std::is_same_v<T, C>) {
      ConvertSpan(scratch_.data(), to_, num_columns_);
    }
  }

 private:
  T* data_;
  T* to_ = nullptr;
  int64_t num_columns_;
  std::vector<C> scratch_;
};

}  // namespace weft

#endif  // WEFT_OPS_CPU_ROW_VIEW_H_
