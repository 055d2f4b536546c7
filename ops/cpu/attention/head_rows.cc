#include "ops/cpu/attention/head_rows.h"

#include <algorithm>

#include "runtime/base/float16.h"
#include "runtime/tensor/convert.h"

// Compiles the part below once for each instruction set, this file included again each time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/attention/head_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// to[j * to_ld + i] = from[i * from_ld + j], i below rows and j below cols.
void TransposeByElement(const float* HWY_RESTRICT from, int64_t from_ld, int64_t rows, int64_t cols,
                        float* HWY_RESTRICT to, int64_t to_ld) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) to[j * to_ld + i] = from[i * from_ld + j];
  }
}

// Squares of eight by eight, of four by four, or single elements, whichever the vectors hold.
#if HWY_TARGET == HWY_SCALAR
constexpr int64_t kSquare = 1;
HWY_INLINE void TransposeSquare(const float* from, int64_t /*from_ld*/, float* to, int64_t /*to_ld*/) {
  *to = *from;
}
#else
constexpr int64_t kSquare = HWY_MAX_BYTES >= 32 ? 8 : 4;
using SquareTag = hn::FixedTag<float, kSquare>;
using SquareVector = hn::Vec<SquareTag>;

// Four rows: column c of each half of the vectors, or of the only one, in columns[c].
// A square is transposed in registers, by interleaving rows twice: by elements, every store would go to
// another line.
HWY_INLINE void TransposeFour(const float* HWY_RESTRICT from, int64_t from_ld, SquareVector (&columns)[4]) {
  const SquareTag d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_ld);
  const auto r2 = hn::LoadU(d, from + 2 * from_ld), r3 = hn::LoadU(d, from + 3 * from_ld);
  const auto low02 = hn::InterleaveLower(d, r0, r2), low13 = hn::InterleaveLower(d, r1, r3);
  const auto high02 = hn::InterleaveUpper(d, r0, r2), high13 = hn::InterleaveUpper(d, r1, r3);
  columns[0] = hn::InterleaveLower(d, low02, low13);
  columns[1] = hn::InterleaveUpper(d, low02, low13);
  columns[2] = hn::InterleaveLower(d, high02, high13);
  columns[3] = hn::InterleaveUpper(d, high02, high13);
}

HWY_INLINE void TransposeSquare(const float* HWY_RESTRICT from, int64_t from_ld, float* HWY_RESTRICT to,
                                int64_t to_ld) {
  const SquareTag d;
  SquareVector upper[4];
  TransposeFour(from, from_ld, upper);
#if HWY_MAX_BYTES >= 32
  SquareVector lower[4];
  TransposeFour(from + 4 * from_ld, from_ld, lower);
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    hn::StoreU(hn::ConcatLowerLower(d, lower[c], upper[c]), d, to + c * to_ld);
    hn::StoreU(hn::ConcatUpperUpper(d, lower[c], upper[c]), d, to + (c + 4) * to_ld);
  }
#else
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) hn::StoreU(upper[c], d, to + c * to_ld);
#endif
}
#endif

// The same as TransposeByElement, in tiles of 16 by 16: whole lines on both sides.
void TransposeF32(const float* HWY_RESTRICT from, int64_t from_ld, int64_t rows, int64_t cols,
                  float* HWY_RESTRICT to, int64_t to_ld) {
  constexpr int64_t kTile = 16;
  for (int64_t i0 = 0; i0 < rows; i0 += kTile) {
    const int64_t i1 = std::min(rows, i0 + kTile), i_squares = i1 - (i1 - i0) % kSquare;
    for (int64_t j0 = 0; j0 < cols; j0 += kTile) {
      const int64_t j1 = std::min(cols, j0 + kTile), j_squares = j1 - (j1 - j0) % kSquare;
      for (int64_t j = j0; j < j_squares; j += kSquare) {
        for (int64_t i = i0; i < i_squares; i += kSquare) {
          TransposeSquare(from + i * from_ld + j, from_ld, to + j * to_ld + i, to_ld);
        }
      }
      TransposeByElement(from + i0 * from_ld + j_squares, from_ld, i1 - i0, j1 - j_squares,
                         to + j_squares * to_ld + i0, to_ld);
      TransposeByElement(from + i_squares * from_ld + j0, from_ld, i1 - i_squares, j_squares - j0,
                         to + j0 * to_ld + i_squares, to_ld);
    }
  }
}

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using U32 = hn::RebindToUnsigned<D>;

HWY_INLINE V LoadElements(D d, const float* from) { return hn::LoadU(d, from); }

// bf16 is the upper half of f32.
HWY_INLINE V LoadElements(D /*d*/, const BFloat16* from) {
  const U32 u32;
  const hn::Rebind<uint16_t, D> u16;
  const auto bits = hn::PromoteTo(u32, hn::LoadU(u16, reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(D(), hn::ShiftLeft<16>(bits));
}

HWY_INLINE void StoreElements(D d, V value, float* to) { hn::StoreU(value, d, to); }

// As BFloat16(float): to nearest, ties to even; NaN stays NaN.
HWY_INLINE void StoreElements(D /*d*/, V value, BFloat16* to) {
  const U32 u32;
  const hn::RebindToSigned<D> i32;
  const hn::Rebind<uint16_t, D> u16;
  const auto bits = hn::BitCast(u32, value);
  const auto top = hn::ShiftRight<16>(bits);
  const auto half = hn::Add(hn::Set(u32, 0x7fffu), hn::And(top, hn::Set(u32, 1u)));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, half));
  const auto nan = hn::Or(top, hn::Set(u32, 0x40u));
  const auto chosen = hn::IfThenElse(hn::RebindMask(u32, hn::IsNaN(value)), nan, rounded);
  hn::StoreU(hn::DemoteTo(u16, hn::BitCast(i32, chosen)), u16, reinterpret_cast<uint16_t*>(to));
}

// Rows of e elements, rows from_ld and to_ld apart.
template <class From, class To>
void CopyRows(const From* HWY_RESTRICT from, int64_t from_ld, int64_t rows, int64_t e, To* HWY_RESTRICT to,
              int64_t to_ld) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < rows; ++i) {
    const From* const in = from + i * from_ld;
    To* const out = to + i * to_ld;
    int64_t j = 0;
    for (; j + lanes <= e; j += lanes) StoreElements(d, LoadElements(d, in + j), out + j);
    // The rest one by one, with the rounding of the vectors: a row may end where its neighbour begins.
    for (; j < e; ++j) out[j] = ConvertElement<To>(in[j]);
  }
}

void CopyF32(const float* from, int64_t from_ld, int64_t rows, int64_t e, float* to, int64_t to_ld) {
  CopyRows(from, from_ld, rows, e, to, to_ld);
}
void WidenBF16(const BFloat16* from, int64_t from_ld, int64_t rows, int64_t e, float* to, int64_t to_ld) {
  CopyRows(from, from_ld, rows, e, to, to_ld);
}
void NarrowToBF16(const float* from, int64_t from_ld, int64_t rows, int64_t e, BFloat16* to, int64_t to_ld) {
  CopyRows(from, from_ld, rows, e, to, to_ld);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(TransposeF32);
HWY_EXPORT(CopyF32);
HWY_EXPORT(WidenBF16);
HWY_EXPORT(NarrowToBF16);

// Rows of e elements, rows from_ld and to_ld apart; each converted as ConvertElement does.
void Copy(const float* from, int64_t from_ld, int64_t rows, int64_t e, float* to, int64_t to_ld) {
  HWY_DYNAMIC_DISPATCH(CopyF32)(from, from_ld, rows, e, to, to_ld);
}
void Copy(const BFloat16* from, int64_t from_ld, int64_t rows, int64_t e, float* to, int64_t to_ld) {
  HWY_DYNAMIC_DISPATCH(WidenBF16)(from, from_ld, rows, e, to, to_ld);
}
void Copy(const float* from, int64_t from_ld, int64_t rows, int64_t e, BFloat16* to, int64_t to_ld) {
  HWY_DYNAMIC_DISPATCH(NarrowToBF16)(from, from_ld, rows, e, to, to_ld);
}
template <class From, class To>
void Copy(const From* from, int64_t from_ld, int64_t rows, int64_t e, To* to, int64_t to_ld) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < e; ++j) to[i * to_ld + j] = ConvertElement<To>(from[i * from_ld + j]);
  }
}

void Transpose(const float* from, int64_t from_ld, int64_t rows, int64_t cols, float* to, int64_t to_ld) {
  HWY_DYNAMIC_DISPATCH(TransposeF32)(from, from_ld, rows, cols, to, to_ld);
}

void Transpose(const double* from, int64_t from_ld, int64_t rows, int64_t cols, double* to, int64_t to_ld) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) to[j * to_ld + i] = from[i * from_ld + j];
  }
}

// Calls use(pointer to the elements as what they are).
template <class Use>
void WithElements(const HeadRows& rows, const Use& use) {
  switch (rows.dtype) {
    case DType::kF64:
      return use(reinterpret_cast<double*>(rows.data));
    case DType::kBF16:
      return use(reinterpret_cast<BFloat16*>(rows.data));
    case DType::kF16:
      return use(reinterpret_cast<Float16*>(rows.data));
    default:
      return use(reinterpret_cast<float*>(rows.data));
  }
}

}  // namespace

void PrefetchRows(const HeadRows& of, int64_t rows, int64_t e) {
  // Into the second cache: the first would lose them before they are used. At most 64 KiB, since what is
  // asked for beyond pushes out what is still to be read.
  constexpr int64_t kLine = 64, kMost = int64_t{1} << 16;
  const int64_t row_bytes = e * ItemSize(of.dtype), stride = of.stride * ItemSize(of.dtype);
  const int64_t some = std::min(rows, kMost / std::max<int64_t>(1, row_bytes));
  for (int64_t i = 0; i < some; ++i) {
    for (int64_t at = 0; at < row_bytes; at += kLine) __builtin_prefetch(of.data + i * stride + at, 0, 2);
  }
}

template <class T>
RowBlock<T> PackRows(const HeadRows& from, int64_t rows, int64_t e, T* to) {
  const int64_t ld = RoundUpToLanes(e);
  WithElements(from, [&](const auto* data) { Copy(data, from.stride, rows, e, to, ld); });
  if (e < ld) {
    for (int64_t i = 0; i < rows; ++i) std::fill(to + i * ld + e, to + (i + 1) * ld, T(0));
  }
  return {to, ld};
}

template <class T>
RowBlock<T> RowsInPlace(const HeadRows& from, int64_t rows, int64_t e, bool padded, T* buffer) {
  if (from.dtype == kDTypeOf<T> && (!padded || e % kBlockLanes == 0)) {
    return {reinterpret_cast<const T*>(from.data), from.stride};
  }
  return PackRows(from, rows, e, buffer);
}

// Panel by panel through `scratch`: 64 rows are widened while they are in the first cache, and transposed
// from there. Rows that are of T already are read where they lie.
template <class T>
BlockRight<T> PackPanels(const HeadRows& from, int64_t rows, int64_t e, T* scratch, T* to) {
  const int64_t panel = e * kPanelColumns;
  for (int64_t begin = 0; begin < rows; begin += kPanelColumns) {
    const int64_t n = std::min(kPanelColumns, rows - begin);
    const HeadRows at = {from.data + begin * from.stride * ItemSize(from.dtype), from.dtype, from.stride};
    const RowBlock<T> in = RowsInPlace(at, n, e, /*padded=*/false, scratch);
    T* const out = to + begin / kPanelColumns * panel;
    Transpose(in.data, in.ld, n, e, out, kPanelColumns);
    // Tiles read whole vectors of a panel: zeros beyond the last row keep leftovers of other
    // tasks out of them.
    if (n == kPanelColumns) continue;
    for (int64_t j = 0; j < e; ++j)
      std::fill(out + j * kPanelColumns + n, out + (j + 1) * kPanelColumns, T(0));
  }
  return {to, kPanelColumns, panel};
}

template <class T>
void UnpackRows(const T* from, int64_t ld, int64_t rows, int64_t e, const HeadRows& to) {
  WithElements(to, [&](auto* data) { Copy(from, ld, rows, e, data, to.stride); });
}

template RowBlock<float> PackRows(const HeadRows&, int64_t, int64_t, float*);
template RowBlock<double> PackRows(const HeadRows&, int64_t, int64_t, double*);
template RowBlock<float> RowsInPlace(const HeadRows&, int64_t, int64_t, bool, float*);
template RowBlock<double> RowsInPlace(const HeadRows&, int64_t, int64_t, bool, double*);
template BlockRight<float> PackPanels(const HeadRows&, int64_t, int64_t, float*, float*);
template BlockRight<double> PackPanels(const HeadRows&, int64_t, int64_t, double*, double*);
template void UnpackRows(const float*, int64_t, int64_t, int64_t, const HeadRows&);
template void UnpackRows(const double*, int64_t, int64_t, int64_t, const HeadRows&);

}  // namespace weft
#endif  // HWY_ONCE
