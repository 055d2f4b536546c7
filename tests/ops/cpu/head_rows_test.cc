#include "ops/cpu/attention/head_rows.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/float16.h"

namespace weft {
namespace {

// Rows with a gap: element (i, j) is i + j / 64, exact in bf16 for few rows.
template <class E>
struct Stored {
  std::vector<E> data;
  int64_t stride;

  Stored(int64_t rows, int64_t e) : data((rows + 1) * (e + 3), E(-1.0f)), stride(e + 3) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < e; ++j) data[i * stride + j] = E(At(i, j));
    }
  }
  static float At(int64_t i, int64_t j) {
    return static_cast<float>(i % 2) + static_cast<float>(j % 64) / 64;
  }
  HeadRows rows() { return {reinterpret_cast<std::byte*>(data.data()), kDTypeOf<E>, stride}; }
};

template <class E, class T>
void CheckPacking(int64_t rows, int64_t e) {
  Stored<E> from(rows, e);
  PrefetchRows(from.rows(), rows, e);
  const int64_t ld = RoundUpToLanes(e);
  std::vector<T> to(rows * ld + 1, T(9)), scratch(kPanelColumns * ld);
  const RowBlock<T> packed = PackRows(from.rows(), rows, e, to.data());
  ASSERT_EQ(packed.ld, ld);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < ld; ++j)
      ASSERT_EQ(to[i * ld + j], j < e ? T(from.At(i, j)) : T(0)) << i << " " << j;
  }
  std::vector<T> panels(PanelElements(rows, e), T(9));
  const BlockRight<T> right = PackPanels(from.rows(), rows, e, scratch.data(), panels.data());
  for (int64_t j = 0; j < (rows + 63) / 64 * 64; ++j) {
    for (int64_t p = 0; p < e; ++p) {
      ASSERT_EQ(right.data[j / 64 * right.panel + p * right.ld + j % 64], j < rows ? T(from.At(j, p)) : T(0));
    }
  }
  Stored<E> back(rows, e);
  const std::vector<E> gaps = back.data;
  for (int64_t i = 0; i < rows; ++i) std::fill_n(back.data.data() + i * back.stride, e, E(-1.0f));
  UnpackRows(to.data(), ld, rows, e, back.rows());
  for (size_t i = 0; i < gaps.size(); ++i) ASSERT_EQ(float(back.data[i]), float(gaps[i])) << i;
}

// Below, at and above the squares of four, vectors, and panels.
TEST(HeadRowsTest, PackingAndBack) {
  for (int64_t rows : {0, 1, 3, 4, 5, 63, 64, 65, 130}) {
    for (int64_t e : {1, 4, 7, 15, 16, 17, 64, 65}) {
      CheckPacking<float, float>(rows, e);
      CheckPacking<BFloat16, float>(rows, e);
      CheckPacking<Float16, float>(rows, e);
      CheckPacking<double, double>(rows, e);
    }
  }
}

TEST(HeadRowsTest, RowsStayWhereTheyCan) {
  Stored<float> from(3, 17), even(3, 16);
  std::vector<float> buffer(3 * 32);
  EXPECT_EQ(RowsInPlace(from.rows(), 3, 17, /*padded=*/false, buffer.data()).data, from.data.data());
  EXPECT_EQ(RowsInPlace(from.rows(), 3, 17, /*padded=*/true, buffer.data()).data, buffer.data());
  EXPECT_EQ(RowsInPlace(even.rows(), 3, 16, /*padded=*/true, buffer.data()).data, even.data.data());
  Stored<BFloat16> half(3, 16);
  EXPECT_EQ(RowsInPlace(half.rows(), 3, 16, /*padded=*/false, buffer.data()).data, buffer.data());
}

// The vectors round as BFloat16 itself: ties to even, overflow to inf, NaN kept whatever its bits.
TEST(HeadRowsTest, NarrowingRoundsAsBFloat16) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {1.00390625f, 1.01171875f, -1.00390625f, 3.4e38f, -inf,
                               inf,         0.0f,        -0.0f,        1e-40f};
  values.push_back(std::bit_cast<float>(0x7f800001u));
  values.push_back(std::bit_cast<float>(0xffffffffu));
  for (uint32_t bits = 0; bits < 40; ++bits) values.push_back(std::bit_cast<float>(0x3f807ff0u + bits));
  const auto n = static_cast<int64_t>(values.size());
  std::vector<BFloat16> to(n);
  UnpackRows(values.data(), n, 1, n, {reinterpret_cast<std::byte*>(to.data()), DType::kBF16, n});
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(to[i].bits(), BFloat16(values[i]).bits()) << values[i];
}

}  // namespace
}  // namespace weft
