#include "ops/cpu/attention/block_product.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

constexpr double kUndefined = 1e30;  // what must not show

template <class T>
std::vector<T> Random(int64_t n, std::mt19937& random) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<T> values(n);
  for (T& value : values) value = static_cast<T>(uniform(random));
  return values;
}

// The right operand [k, n] row-major with a gap, or in panels.
template <class T>
struct Right {
  std::vector<T> data;
  int64_t ld;
  int64_t panel;

  Right(int64_t k, int64_t n, bool panels, std::mt19937& random) {
    ld = panels ? kPanelColumns : RoundUpToLanes(n) + 5;
    panel = panels ? k * kPanelColumns : kPanelColumns;
    data = Random<T>(panels ? (n + kPanelColumns) / kPanelColumns * panel + kPanelColumns : (k + 1) * ld,
                     random);
  }
  BlockRight<T> view() const { return {data.data(), ld, panel}; }
  double At(int64_t p, int64_t j) const {
    return static_cast<double>(data[j / kPanelColumns * panel + p * ld + j % kPanelColumns]);
  }
};

// Every element that the product must define, against the sum.
template <class T>
void CheckProduct(const BlockProduct<T>& product, bool transposed, bool panels, bool factors) {
  std::mt19937 random(3);
  const int64_t m = product.m, n = product.n, k = product.k;
  const int64_t lda = (transposed ? m : k) + 3, ldc = RoundUpToLanes(n) + 2;
  const std::vector<T> a = Random<T>((transposed ? k : m) * lda + 1, random);
  const Right<T> b(k, n, panels, random);
  const std::vector<T> row_factors = Random<T>(m + 1, random);
  std::vector<T> c(m * ldc + 1, product.accumulate ? T(0.5) : T(kUndefined));
  const std::vector<T> before = c;
  BlockProduct<T> call = product;
  if (factors) call.row_factors = row_factors.data();
  MultiplyBlocks<T>(call, {a.data(), lda, transposed}, b.view(), c.data(), ldc);
  const double tolerance = (sizeof(T) == 8 ? 1e-15 : 5e-7) * static_cast<double>(k + 2);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < std::min(n, product.columns + i); ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += static_cast<double>(a[transposed ? p * lda + i : i * lda + p]) * b.At(p, j);
      double expected = static_cast<double>(product.alpha) * sum;
      if (product.accumulate) expected += 0.5 * (factors ? static_cast<double>(row_factors[i]) : 1);
      ASSERT_NEAR(c[i * ldc + j], expected, tolerance) << "m " << m << " n " << n << " k " << k << " at " << i
                                                       << ", " << j << (transposed ? " transposed" : "");
    }
    for (int64_t j = RoundUpToLanes(n); j < ldc; ++j) ASSERT_EQ(c[i * ldc + j], before[i * ldc + j]);
  }
}

// Below, at and above tiles of 6 rows and of 2 or 4 vectors, and panels of 64 columns.
TEST(BlockProductTest, MatchesTheSum) {
  for (int64_t m : {0, 1, 2, 3, 5, 6, 7, 13, 64}) {
    for (int64_t n : {0, 1, 15, 16, 17, 48, 63, 64, 65, 130}) {
      for (int64_t k : {0, 1, 7, 64}) {
        for (int flags = 0; flags < 8; ++flags) {
          const bool accumulate = flags & 4;
          CheckProduct<float>({.m = m, .n = n, .k = k, .alpha = 0.5f, .accumulate = accumulate}, flags & 1,
                              flags & 2, accumulate && k == 7);
          CheckProduct<double>({.m = m, .n = n, .k = k, .alpha = -1.5, .accumulate = accumulate}, flags & 1,
                               flags & 2, accumulate && k == 7);
        }
      }
    }
  }
}

// Where the left operand is 0 outside of the stairs, the sums along them are the whole ones.
template <class T>
void CheckStairs(int64_t m, int64_t k, int64_t begin, int64_t end) {
  std::mt19937 random(5);
  const int64_t n = 20;
  std::vector<T> a = Random<T>(m * k, random);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      if (p < begin + i || p >= end + i) a[i * k + p] = 0;
    }
  }
  const Right<T> b(k, n, /*panels=*/false, random);
  std::vector<T> c(m * 32, T(kUndefined));
  MultiplyBlocks<T>({.m = m, .n = n, .k = k, .begin = begin, .end = end}, {a.data(), k}, b.view(), c.data(),
                    32);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p) sum += static_cast<double>(a[i * k + p]) * b.At(p, j);
      ASSERT_NEAR(c[i * 32 + j], sum, 1e-5) << begin << " " << end << " at " << i << ", " << j;
    }
  }
}

TEST(BlockProductTest, Staircases) {
  constexpr int64_t kNone = BlockProduct<float>::kNoStairs;
  for (int64_t stair : {-70, -9, -1, 0, 1, 4, 33, 100}) {
    CheckStairs<float>(40, 33, -kNone, stair);
    CheckStairs<float>(40, 33, stair, kNone);
    CheckStairs<float>(40, 33, stair - 10, stair);
    CheckStairs<double>(40, 33, stair - 10, stair);
    for (bool panels : {false, true}) {
      CheckProduct<float>({.m = 20, .n = 70, .k = 9, .columns = stair}, false, panels, false);
      CheckProduct<double>({.m = 20, .n = 70, .k = 9, .columns = stair}, true, panels, false);
    }
  }
}

// What lies beyond a staircase is not read: NaN there does not show.
TEST(BlockProductTest, SumsEndWhereTheStairsEnd) {
  const int64_t k = 12;
  std::vector<float> a(k, 1.0f), b((k + 1) * 16, 2.0f);
  for (int64_t p = 0; p < k; ++p) {
    if (p < 3 || p >= 8) a[p] = std::nanf("");
  }
  std::vector<float> c(16);
  MultiplyBlocks<float>({.m = 1, .n = 1, .k = k, .begin = 3, .end = 8}, {a.data(), k}, {b.data(), 16},
                        c.data(), 16);
  EXPECT_EQ(c[0], 10);
}

template <class T>
void CheckRows(int64_t m, int64_t n, int64_t k) {
  std::mt19937 random(7);
  const int64_t ld = RoundUpToLanes(k);
  std::vector<T> a = Random<T>(m * ld + 1, random), b = Random<T>(n * ld + 1, random);
  for (std::vector<T>* rows : {&a, &b}) {
    for (size_t i = 0; i + 1 < rows->size(); ++i) {
      if (static_cast<int64_t>(i) % ld >= k) (*rows)[i] = 0;
    }
  }
  std::vector<T> c(m * (n + 1) + 1);
  MultiplyByRows<T>(m, n, k, T(0.5), a.data(), ld, b.data(), ld, c.data(), n + 1);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t p = 0; p < k; ++p)
        sum += static_cast<double>(a[i * ld + p]) * static_cast<double>(b[j * ld + p]);
      ASSERT_NEAR(c[i * (n + 1) + j], 0.5 * sum, 1e-5) << m << " " << n << " " << k;
    }
  }
}

TEST(BlockProductTest, ByRows) {
  for (int64_t m : {0, 1, 4}) {
    for (int64_t n : {0, 1, 9}) {
      for (int64_t k : {1, 15, 16, 17, 64}) {
        CheckRows<float>(m, n, k);
        CheckRows<double>(m, n, k);
      }
    }
  }
}

}  // namespace
}  // namespace weft
