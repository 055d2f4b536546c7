#ifndef WEFT_OPS_CPU_NORMALIZATION_WIDENED_ROWS_H_
#define WEFT_OPS_CPU_NORMALIZATION_WIDENED_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "ops/cpu/spans/row_view.h"
#include "runtime/tensor/convert_spans.h"

namespace weft {

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

#endif  // WEFT_OPS_CPU_NORMALIZATION_WIDENED_ROWS_H_
