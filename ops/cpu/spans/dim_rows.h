#ifndef WEFT_OPS_CPU_SPANS_DIM_ROWS_H_
#define WEFT_OPS_CPU_SPANS_DIM_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "ops/cpu/spans/element_blocks.h"
#include "ops/op/kernel_call.h"
#include "ops/reduce/reduce.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/tensor.h"

namespace weft {

// A tensor as rows along any of its dims: the elements that share all other indices, in row-major order. Rows
// are numbered by those other indices, row-major. A handle, as Tensor is.
struct DimRows {
  Tensor tensor;  // the other dims, then those of the rows
  int num_other_dims = 0;
  int64_t num_rows = 1;
  int64_t num_columns = 1;
  int64_t column_stride = 1;  // in elements

  // Where row `row` begins, in elements.
  int64_t Offset(int64_t row) const;
  bool dense() const { return column_stride == 1 || num_columns <= 1; }
};

// Cost: none for one dim, and for several where one stride steps through them; else one copy.
DimRows RowsAlong(const Tensor& tensor, DimMask dims, KernelContext& context);

// Calls body(begin, end) for blocks of rows, by their number and length alone, on the pool.
void ParallelForDimRows(KernelContext& context, int64_t num_rows, int64_t num_columns,
                        absl::FunctionRef<void(int64_t begin, int64_t end)> body);

// Rows that lie apart are moved through scratch memory several at a time: neighbours share cache lines.
class DimRowTile {
 public:
  static constexpr int64_t kRows = 16;
  static constexpr int64_t kElements = 65536;

  DimRowTile(const DimRows& rows, int64_t num_columns)
      : capacity_(std::clamp<int64_t>(kElements / std::max<int64_t>(num_columns, 1), 1, kRows)),
        rows_(rows) {}

 protected:
  void Locate(int64_t begin, int64_t end) {
    begin_ = begin;
    size_ = std::min(end - begin, capacity_);
    for (int64_t i = 0; i < size_; ++i) offsets_[i] = rows_.Offset(begin + i);
  }
  bool Holds(int64_t row) const { return row >= begin_ && row < begin_ + size_; }

  int64_t capacity_;
  const DimRows rows_;
  int64_t begin_ = 0;
  int64_t size_ = 0;
  int64_t offsets_[kRows];
};

// Rows of T for reading in the type that kernels compute in: in place where they lie so, else through
// scratch. One for each task, which reads rows below `end`; a row holds until the next Read.
template <class T>
class DimRowReader : DimRowTile {
 public:
  using C = ArithmeticType<T>;

  DimRowReader(const DimRows& rows, int64_t end)
      : DimRowTile(rows, rows.num_columns), data_(rows.tensor.data<T>()), end_(end) {}

  const C* Read(int64_t row) {
    if constexpr (std::is_same_v<T, C>) {
      if (rows_.dense()) return data_ + rows_.Offset(row);
    }
    const int64_t n = rows_.num_columns;
    if (!Holds(row)) {
      Locate(row, end_);
      scratch_.reset(new C[size_ * n]);
      for (int64_t j = 0; j < n; ++j) {
        const T* const from = data_ + j * rows_.column_stride;
        for (int64_t i = 0; i < size_; ++i) scratch_[i * n + j] = ConvertElement<C>(from[offsets_[i]]);
      }
    }
    return scratch_.get() + (row - begin_) * n;
  }

  // Elements [first, first + count) of a row, without its neighbours: for tasks that share long rows.
  const C* ReadPart(int64_t row, int64_t first, int64_t count) {
    const T* const from = data_ + rows_.Offset(row) + first * rows_.column_stride;
    if constexpr (std::is_same_v<T, C>) {
      if (rows_.dense()) return from;
    }
    scratch_.reset(new C[count]);
    for (int64_t j = 0; j < count; ++j) scratch_[j] = ConvertElement<C>(from[j * rows_.column_stride]);
    return scratch_.get();
  }

 private:
  const T* data_;
  int64_t end_;
  std::unique_ptr<C[]> scratch_;
};

// Rows of T for writing in the type that kernels compute in, one after the other from `begin` to `end`: what
// stands in Row(i) reaches the tensor by the time that the writer is gone. One for each task.
template <class T>
class DimRowWriter : DimRowTile {
 public:
  using C = ArithmeticType<T>;

  DimRowWriter(const DimRows& rows, int64_t end)
      : DimRowTile(rows, rows.num_columns), data_(rows.tensor.data<T>()), end_(end) {}
  ~DimRowWriter() { Flush(); }
  DimRowWriter(const DimRowWriter&) = delete;
  DimRowWriter& operator=(const DimRowWriter&) = delete;

  C* Row(int64_t row) {
    if constexpr (std::is_same_v<T, C>) {
      if (rows_.dense()) return data_ + rows_.Offset(row);
    }
    if (!Holds(row)) {
      Flush();
      Locate(row, end_);
      scratch_.reset(new C[size_ * rows_.num_columns]);
    }
    return scratch_.get() + (row - begin_) * rows_.num_columns;
  }

 private:
  void Flush() {
    const int64_t n = rows_.num_columns;
    for (int64_t j = 0; j < n && size_ > 0; ++j) {
      T* const to = data_ + j * rows_.column_stride;
      for (int64_t i = 0; i < size_; ++i) to[offsets_[i]] = ConvertElement<T>(scratch_[i * n + j]);
    }
  }

  T* data_;
  int64_t end_;
  std::unique_ptr<C[]> scratch_;
};

// One result for every row: part(elements, count, row, first) over parts of the row that follow from its
// length alone, put together in their order by merge(result, next). Rows of no elements have one part of
// none.
template <class T, class Result, class Part, class Merge>
std::vector<Result> ReduceDimRows(KernelContext& context, const DimRows& rows, const Part& part,
                                  const Merge& merge) {
  constexpr int64_t kPart = 32768;
  const int64_t n = rows.num_columns;
  const int64_t num_parts = std::max<int64_t>((n + kPart - 1) / kPart, 1);
  std::vector<Result> results(rows.num_rows * num_parts);
  ParallelForDimRows(context, rows.num_rows * num_parts, std::min(n, kPart), [&](int64_t begin, int64_t end) {
    DimRowReader<T> reader(rows, end);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / num_parts;
      const int64_t first = i % num_parts * kPart;
      const int64_t count = std::min(kPart, n - first);
      results[i] = num_parts == 1 ? part(reader.Read(row), n, row, first)
                                  : part(reader.ReadPart(row, first, count), count, row, first);
    }
  });
  if (num_parts == 1) return results;
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    Result result = results[row * num_parts];
    for (int64_t i = 1; i < num_parts; ++i) merge(result, results[row * num_parts + i]);
    results[row] = result;
  }
  results.resize(rows.num_rows);
  return results;
}

// A view of x, which lacks the dims of `missing`, as a tensor of `ndim` dims: those have extent 1.
Tensor WithMissingDims(const Tensor& x, int ndim, DimMask missing);

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_DIM_ROWS_H_
