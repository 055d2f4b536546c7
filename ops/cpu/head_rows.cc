#include "ops/cpu/head_rows.h"

#include <algorithm>

#include "runtime/base/float16.h"
#include "runtime/tensor/convert.h"

// Compiles the part below once for each instruction set, this file included again each time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/head_rows.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// to[j * to_ld + i] = from[i * from_ld + j], i below rows and j below cols, in squares of four by four.
void TransposeF32(const float* HWY_RESTRICT from, int64_t from_ld, int64_t rows, int64_t cols,
                  float* HWY_RESTRICT to, int64_t to_ld) {
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d;
  for (; i + 4 <= rows; i += 4) {
    const float* const in = from + i * from_ld;
    int64_t j = 0;
    for (; j + 4 <= cols; j += 4) {
      const auto r0 = hn::LoadU(d, in + j), r1 = hn::LoadU(d, in + from_ld + j);
      const auto r2 = hn::LoadU(d, in + 2 * from_ld + j), r3 = hn::LoadU(d, in + 3 * from_ld + j);
      const auto low02 = hn::InterleaveLower(d, r0, r2), low13 = hn::InterleaveLower(d, r1, r3);
      const auto high02 = hn::InterleaveUpper(d, r0, r2), high13 = hn::InterleaveUpper(d, r1, r3);
      float* const out = to + j * to_ld + i;
      hn::StoreU(hn::InterleaveLower(d, low02, low13), d, out);
      hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, out + to_ld);
      hn::StoreU(hn::InterleaveLower(d, high02, high13), d, out + 2 * to_ld);
      hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, out + 3 * to_ld);
    }
    for (; j < cols; ++j) {
      for (int64_t r = 0; r < 4; ++r) to[j * to_ld + i + r] = in[r * from_ld + j];
    }
  }
#endif
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) to[j * to_ld + i] = from[i * from_ld + j];
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(TransposeF32);

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

template <class T>
RowBlock<T> PackRows(const HeadRows& from, int64_t rows, int64_t e, T* to) {
  const int64_t ld = RoundUpToLanes(e);
  WithElements(from, [&](const auto* data) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < e; ++j) to[i * ld + j] = ConvertElement<T>(data[i * from.stride + j]);
      std::fill(to + i * ld + e, to + (i + 1) * ld, T(0));
    }
  });
  return {to, ld};
}

template <class T>
RowBlock<T> RowsInPlace(const HeadRows& from, int64_t rows, int64_t e, bool padded, T* buffer) {
  if (from.dtype == kDTypeOf<T> && (!padded || e % kBlockLanes == 0)) {
    return {reinterpret_cast<const T*>(from.data), from.stride};
  }
  return PackRows(from, rows, e, buffer);
}

template <class T>
BlockRight<T> PackPanels(const HeadRows& from, int64_t rows, int64_t e, T* scratch, T* to) {
  const int64_t panel = e * kPanelColumns;
  for (int64_t begin = 0; begin < rows; begin += kPanelColumns) {
    const int64_t n = std::min(kPanelColumns, rows - begin);
    const HeadRows at = {from.data + begin * from.stride * ItemSize(from.dtype), from.dtype, from.stride};
    const RowBlock<T> in = RowsInPlace(at, n, e, /*padded=*/false, scratch);
    T* const out = to + begin / kPanelColumns * panel;
    Transpose(in.data, in.ld, n, e, out, kPanelColumns);
    if (n == kPanelColumns) continue;
    for (int64_t j = 0; j < e; ++j)
      std::fill(out + j * kPanelColumns + n, out + (j + 1) * kPanelColumns, T(0));
  }
  return {to, kPanelColumns, panel};
}

template <class T>
void UnpackRows(const T* from, int64_t ld, int64_t rows, int64_t e, const HeadRows& to) {
  WithElements(to, [&]<class E>(E* data) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < e; ++j) data[i * to.stride + j] = ConvertElement<E>(from[i * ld + j]);
    }
  });
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
