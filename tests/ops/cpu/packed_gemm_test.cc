#include "ops/cpu/product/packed_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "ops/cpu/product/gemm_panels.h"
#include "tests/ops/cpu/stored_matrix.h"

namespace weft {
namespace {

constexpr int64_t kGap = 3;  // elements between the operands' rows

// a b into rows of n + 5 elements that were 0.25.
template <class T>
std::vector<T> RunPacked(const GemmSize& size, const StoredMatrix<T>& a, const StoredMatrix<T>& b,
                         const GemmSum& sum, int threads = 1) {
  ThreadPool pool(threads);
  const std::shared_ptr<Allocator> allocator = MakeCpuAllocator();
  KernelContext context{pool, allocator};
  std::vector<T> c(size.m * (size.n + 5), T(0.25f));
  PackedGemm<T>(context, size, a.matrix(), b.matrix(), sum, c.data(), size.n + 5);
  return c;
}

// Half a unit in the last of bf16's 8 bits; the f32 sums' own rounding.
template <class T>
double Tolerance(double expected, int64_t k) {
  return 3e-7 * std::sqrt(static_cast<double>(k)) * 8 + (sizeof(T) == 2 ? std::abs(expected) / 256 : 0);
}

template <class T>
void CheckProduct(const GemmSize& size, bool a_transposed, bool b_transposed, bool accumulate) {
  const StoredMatrix<T> a(size.m, size.k, a_transposed, kGap, /*seed=*/1);
  const StoredMatrix<T> b(size.k, size.n, b_transposed, kGap, /*seed=*/2);
  const std::vector<T> c = RunPacked(size, a, b, {.accumulate = accumulate}, /*threads=*/2);
  for (int64_t i = 0; i < size.m; ++i) {
    for (int64_t j = 0; j < size.n + 5; ++j) {
      double expected = j < size.n && !accumulate ? 0 : 0.25;  // beyond n as it was
      if (j < size.n) expected += Product(a, b, i, j);
      ASSERT_NEAR(static_cast<double>(c[i * (size.n + 5) + j]), expected, Tolerance<T>(expected, size.k))
          << size.m << " x " << size.n << " x " << size.k << (a_transposed ? " T" : " N")
          << (b_transposed ? "T" : "N") << " at " << i << ", " << j;
    }
  }
}

// One, a block less, whole, and more: rows 14, columns 32, vectors of 16, pairs of k, 320 units of k at once.
template <class T>
void CheckExtents() {
  for (int flags = 0; flags < 4; ++flags) {
    for (const GemmSize& size :
         {GemmSize{1, 1, 1}, GemmSize{2, 3, 2}, GemmSize{13, 31, 15}, GemmSize{14, 32, 16},
          GemmSize{15, 33, 17}, GemmSize{29, 129, 33}, GemmSize{1, 200, 64}, GemmSize{100, 1, 31},
          GemmSize{16, 48, 320}, GemmSize{16, 49, 321}, GemmSize{17, 40, 641}, GemmSize{30, 17, 1283}}) {
      CheckProduct<T>(size, flags & 1, flags & 2, /*accumulate=*/false);
    }
  }
}

TEST(PackedGemmTest, F32MatchesTheSum) {
  if (!HasPanelProducts<float>()) GTEST_SKIP() << "this processor has no f32 panels";
  CheckExtents<float>();
  CheckProduct<float>({29, 130, 700}, /*a_transposed=*/true, /*b_transposed=*/false, /*accumulate=*/true);
}

TEST(PackedGemmTest, BF16SumsInFloatAndRoundsOnce) {
  if (!HasPanelProducts<BFloat16>()) GTEST_SKIP() << "this processor has no bf16 panels";
  CheckExtents<BFloat16>();
}

// More rows than are packed at once, and more of k than all of them keep packed.
template <class T>
void CheckBlocks() {
  for (const GemmSize& size : {GemmSize{2100, 5, 40}, GemmSize{3, 4, 50000}, GemmSize{2049, 33, 4500}}) {
    const StoredMatrix<T> a(size.m, size.k, /*transposed=*/false, kGap, /*seed=*/3);
    const StoredMatrix<T> b(size.k, size.n, /*transposed=*/true, kGap, /*seed=*/4);
    const std::vector<T> c = RunPacked(size, a, b, {});
    for (int64_t i = 0; i < size.m; i += std::max<int64_t>(1, size.m / 23)) {
      for (int64_t j = 0; j < size.n; ++j) {
        const double expected = Product(a, b, i, j);
        ASSERT_NEAR(static_cast<double>(c[i * (size.n + 5) + j]), expected, Tolerance<T>(expected, size.k))
            << size.m << " x " << size.n << " x " << size.k << " at " << i << ", " << j;
      }
    }
  }
}

TEST(PackedGemmTest, CutsLongOperandsIntoBlocks) {
  if (HasPanelProducts<float>()) CheckBlocks<float>();
  if (HasPanelProducts<BFloat16>()) CheckBlocks<BFloat16>();
}

// Bits of `part` rows and columns are those of the whole product, on any number of threads: where they share
// the columns, and where, of few, the rows.
template <class T>
void CheckBits(const GemmSize& size, const GemmSize& part) {
  const StoredMatrix<T> a(size.m, size.k, /*transposed=*/true, kGap, /*seed=*/5);
  const StoredMatrix<T> b(size.k, size.n, /*transposed=*/false, kGap, /*seed=*/6);
  const std::vector<T> whole = RunPacked(size, a, b, {});
  for (int threads : {2, 3, 7}) {
    const std::vector<T> again = RunPacked(size, a, b, {}, threads);
    EXPECT_EQ(std::memcmp(whole.data(), again.data(), whole.size() * sizeof(T)), 0) << threads << " threads";
  }
  const std::vector<T> some = RunPacked(part, a, b, {}, /*threads=*/2);
  for (int64_t i = 0; i < part.m; ++i) {
    ASSERT_EQ(std::memcmp(&some[i * (part.n + 5)], &whole[i * (size.n + 5)], part.n * sizeof(T)), 0)
        << "row " << i;
  }
}

TEST(PackedGemmTest, BitsDependOnKAlone) {
  for (const auto& [size, part] : {std::pair{GemmSize{150, 333, 700}, GemmSize{61, 77, 700}},
                                   std::pair{GemmSize{1300, 70, 90}, GemmSize{29, 33, 90}},
                                   std::pair{GemmSize{20, 30, 1500}, GemmSize{3, 2, 1500}}}) {
    if (HasPanelProducts<float>()) CheckBits<float>(size, part);
    if (HasPanelProducts<BFloat16>()) CheckBits<BFloat16>(size, part);
  }
}

// The bias comes after the whole sum, of one or several parts of k, on whole vectors and beyond the last.
TEST(PackedGemmTest, AddsABiasToEveryRow) {
  if (!HasPanelProducts<float>()) GTEST_SKIP() << "this processor has no f32 panels";
  for (const GemmSize& size : {GemmSize{30, 97, 60}, GemmSize{17, 64, 1100}}) {
    const StoredMatrix<float> a(size.m, size.k, /*transposed=*/false, kGap, /*seed=*/9);
    const StoredMatrix<float> b(size.k, size.n, /*transposed=*/false, kGap, /*seed=*/10);
    std::vector<float> bias(size.n);
    for (int64_t j = 0; j < size.n; ++j) bias[j] = 0.3f * static_cast<float>(j) - 7;
    for (const bool accumulate : {false, true}) {
      const std::vector<float> without = RunPacked(size, a, b, {.accumulate = accumulate});
      const std::vector<float> with =
          RunPacked(size, a, b, {.accumulate = accumulate, .bias = bias.data()}, /*threads=*/2);
      for (int64_t i = 0; i < size.m; ++i) {
        for (int64_t j = 0; j < size.n + 5; ++j) {
          const int64_t at = i * (size.n + 5) + j;
          ASSERT_EQ(with[at], j < size.n ? without[at] + bias[j] : 0.25f) << i << ", " << j;
        }
      }
    }
  }
}

TEST(PackedGemmTest, BF16RoundsOnceWithItsBias) {
  if (!HasPanelProducts<BFloat16>()) GTEST_SKIP() << "this processor has no bf16 panels";
  const GemmSize size = {16, 40, 1100};
  const StoredMatrix<BFloat16> a(size.m, size.k, /*transposed=*/false, kGap, /*seed=*/11);
  const StoredMatrix<BFloat16> b(size.k, size.n, /*transposed=*/true, kGap, /*seed=*/12);
  std::vector<float> bias(size.n, 1.0f / 3);
  const std::vector<BFloat16> c = RunPacked(size, a, b, {.bias = bias.data()});
  for (int64_t i = 0; i < size.m; ++i) {
    for (int64_t j = 0; j < size.n; ++j) {
      const double expected = Product(a, b, i, j) + static_cast<double>(bias[j]);
      ASSERT_NEAR(static_cast<double>(c[i * (size.n + 5) + j]), expected,
                  Tolerance<BFloat16>(expected, size.k))
          << i << ", " << j;
    }
  }
}

TEST(PackedGemmTest, NotANumberStays) {
  if (!HasPanelProducts<float>()) GTEST_SKIP() << "this processor has no f32 panels";
  StoredMatrix<float> a(20, 40, /*transposed=*/false, kGap, /*seed=*/7);
  const StoredMatrix<float> b(40, 40, /*transposed=*/false, kGap, /*seed=*/8);
  a.data[3 * a.ld + 39] = std::nanf("");
  const std::vector<float> c = RunPacked({20, 40, 40}, a, b, {});
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = 0; j < 40; ++j) EXPECT_EQ(std::isnan(c[i * 45 + j]), i == 3) << i << ", " << j;
  }
}

template <class T>
bool IsWanted(const GemmSize& size, bool a_transposed, bool b_transposed, int64_t ldc) {
  const GemmMatrix<T> a = {.ld = a_transposed ? size.m : size.k, .transposed = a_transposed};
  const GemmMatrix<T> b = {.ld = b_transposed ? size.k : size.n, .transposed = b_transposed};
  return WantsPackedGemm<T>(size, a, b, ldc);
}

TEST(PackedGemmTest, IsWantedWhereItIsFaster) {
  const bool has_f32 = HasPanelProducts<float>();
  EXPECT_FALSE(IsWanted<float>({256, 768, 768}, false, false, 768));
  EXPECT_EQ(IsWanted<float>({256, 768, 768}, false, true, 768), has_f32);
  // Rows that share places of the caches: c's and b's, or a's where it is read across them.
  EXPECT_EQ(IsWanted<float>({256, 3072, 768}, false, false, 3072), has_f32);
  EXPECT_EQ(IsWanted<float>({3072, 768, 256}, true, false, 768), has_f32);
  EXPECT_FALSE(IsWanted<float>({256, 768, 3072}, false, false, 768));
  EXPECT_EQ(IsWanted<BFloat16>({256, 768, 768}, false, false, 768),
            HasPanelProducts<BFloat16>() && !HasTileBF16());
  EXPECT_FALSE(IsWanted<double>({256, 768, 768}, false, true, 768));
  EXPECT_FALSE(IsWanted<BFloat16>({1, 50257, 768}, false, true, 50257));
  EXPECT_FALSE(IsWanted<float>({64, 64, 64}, false, true, 64));
}

}  // namespace
}  // namespace weft
