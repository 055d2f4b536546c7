#include "ops/cpu/product/gemm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/ops/cpu/stored_matrix.h"

namespace weft {
namespace {

template <class T>
void CheckGemm(const GemmSize& size, bool a_transposed, bool b_transposed, bool accumulate, T alpha) {
  const StoredMatrix<T> a(size.m, size.k, a_transposed, /*gap=*/3, /*seed=*/7);
  const StoredMatrix<T> b(size.k, size.n, b_transposed, /*gap=*/0, /*seed=*/8);
  const int64_t ldc = size.n + 2;
  std::vector<T> c(size.m * ldc, T(0.25));
  Gemm<T>(size, alpha, a.matrix(), b.matrix(), accumulate, c.data(), ldc);
  const double tolerance = (sizeof(T) == 8 ? 1e-14 : 1e-6) * static_cast<double>(size.k + 1);
  for (int64_t i = 0; i < size.m; ++i) {
    for (int64_t j = 0; j < ldc; ++j) {
      const double expected = j >= size.n ? 0.25 : (accumulate ? 0.25 : 0) + alpha * Product(a, b, i, j);
      ASSERT_NEAR(c[i * ldc + j], expected, tolerance)
          << "m " << size.m << " n " << size.n << " k " << size.k << " at " << i << ", " << j;
    }
  }
}

constexpr int64_t kExtents[] = {0, 1, 3, 17, 70};

TEST(GemmTest, MatchesTheSum) {
  for (int64_t m : kExtents) {
    for (int64_t n : kExtents) {
      for (int64_t k : kExtents) {
        for (int flags = 0; flags < 8; ++flags) {
          CheckGemm<float>({m, n, k}, flags & 1, flags & 2, flags & 4, 0.5f);
          CheckGemm<double>({m, n, k}, flags & 1, flags & 2, flags & 4, -1.5);
        }
      }
    }
  }
}

TEST(GemmTest, BF16SumsInFloatAndRoundsOnce) {
  if (!HasFastBF16()) GTEST_SKIP() << "no bf16 instructions";
  for (int64_t k : {0, 1, 3, 300}) {
    for (int flags = 0; flags < 4; ++flags) {
      const StoredMatrix<BFloat16> a(5, k, flags & 1, /*gap=*/1, /*seed=*/11);
      const StoredMatrix<BFloat16> b(k, 33, flags & 2, /*gap=*/2, /*seed=*/12);
      std::vector<BFloat16> c(5 * 40, BFloat16(9.0f));
      GemmBF16({5, 33, k}, a.matrix(), b.matrix(), c.data(), 40);
      for (int64_t i = 0; i < 5; ++i) {
        for (int64_t j = 0; j < 40; ++j) {
          const double expected = j < 33 ? Product(a, b, i, j) : 9;
          // Half a unit in the last of 8 bits, and the float sum's own rounding.
          const double tolerance = std::abs(expected) / 256 + 1e-5;
          ASSERT_NEAR(static_cast<float>(c[i * 40 + j]), expected, tolerance)
              << "k " << k << ": " << i << ", " << j;
        }
      }
    }
  }
}

TEST(GemmTilingTest, TilesCoverTheOutputOnce) {
  for (const GemmSize& size :
       {GemmSize{1, 1, 1}, GemmSize{257, 769, 3}, GemmSize{256, 3072, 768}, GemmSize{256, 768, 3072},
        GemmSize{5, 5000, 100000}, GemmSize{3000, 7, 4096}}) {
    const GemmTiling tiling(size);
    std::vector<int> covered(size.m * size.n, 0);
    for (int64_t index = 0; index < tiling.num_tiles(); ++index) {
      const GemmTiling::Tile tile = tiling.TileAt(index);
      EXPECT_EQ(tile.size.k, size.k);
      for (int64_t i = 0; i < tile.size.m; ++i) {
        for (int64_t j = 0; j < tile.size.n; ++j) ++covered[(tile.i + i) * size.n + tile.j + j];
      }
    }
    EXPECT_EQ(std::count(covered.begin(), covered.end(), 1), size.m * size.n) << size.m << " " << size.n;
  }
}

// For two threads there is as much to do for one as for the other, within what vectors make of it.
TEST(GemmTilingTest, TilesAreEvenInNumberAndSize) {
  for (const GemmSize& size : {GemmSize{768, 2304, 256}, GemmSize{384, 1152, 4096}, GemmSize{384, 384, 4096},
                               GemmSize{1024, 2304, 768}, GemmSize{700, 700, 700}}) {
    const GemmTiling tiling(size);
    EXPECT_GT(tiling.num_tiles(), 1);
    EXPECT_EQ(tiling.num_tiles() % 2, 0) << size.m << " x " << size.n;
    const int64_t last = tiling.num_tiles() - 1;
    const GemmSize least = tiling.TileAt(last).size;
    EXPECT_GE(4 * least.m * least.n * size.k, 3 * tiling.tile_work()) << size.m << " x " << size.n;
  }
}

TEST(GemmTilingTest, OneTileWhereATaskIsNotWorthIt) {
  EXPECT_EQ(GemmTiling({64, 64, 64}).num_tiles(), 1);
  EXPECT_EQ(GemmTiling({256, 768, 64}).num_tiles(), 1);
  EXPECT_GE(GemmTiling({256, 768, 3072}).num_tiles(), 4);
}

}  // namespace
}  // namespace weft
