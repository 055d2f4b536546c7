#ifndef WEFT_OPS_CPU_ATTENTION_HEAD_ROWS_H_
#define WEFT_OPS_CPU_ATTENTION_HEAD_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "ops/cpu/attention/block_product.h"
#include "runtime/base/dtype.h"

namespace weft {

// Rows of contiguous floating elements somewhere in a tensor, `stride` elements from row to row. A view.
struct HeadRows {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0;
};

// The same as products take them: in T, padded or not.
template <class T>
struct RowBlock {
  const T* data = nullptr;
  int64_t ld = 0;

  BlockLeft<T> left() const { return {data, ld, false}; }
  BlockRight<T> right() const { return {data, ld, kPanelColumns}; }
  RowBlock From(int64_t row) const { return {data + row * ld, ld}; }
};

// Asks for the lines of [rows, e], at most 64 KiB of them, to be in the second cache by the time that they
// are read or written. Rows of a packed qkv lie kilobytes apart, which no hardware foresees.
void PrefetchRows(const HeadRows& of, int64_t rows, int64_t e);

// Copies [rows, e] to rows of RoundUpToLanes(e) elements in T, 0 beyond e.
template <class T>
RowBlock<T> PackRows(const HeadRows& from, int64_t rows, int64_t e, T* to);

// The rows where they lie if they are of T and, where `padded` is wanted, e needs no padding; else packed
// into `buffer`.
template <class T>
RowBlock<T> RowsInPlace(const HeadRows& from, int64_t rows, int64_t e, bool padded, T* buffer);

// Elements of PackPanels' result.
constexpr int64_t PanelElements(int64_t rows, int64_t e) {
  return (rows + kPanelColumns - 1) / kPanelColumns * kPanelColumns * e;
}

// Transposes [rows, e] to panels of 64 columns, one after the other: the right operand [e, rows] of a
// product, 0 beyond `rows`. `scratch` holds 64 rows of RoundUpToLanes(e).
template <class T>
BlockRight<T> PackPanels(const HeadRows& from, int64_t rows, int64_t e, T* scratch, T* to);

// Writes rows `ld` apart to a tensor, rounding once.
template <class T>
void UnpackRows(const T* from, int64_t ld, int64_t rows, int64_t e, const HeadRows& to);

}  // namespace weft

#endif  // WEFT_OPS_CPU_ATTENTION_HEAD_ROWS_H_
