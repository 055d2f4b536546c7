// The warp's instructions, emulated, against plain loops over whole matrices: the index arithmetic here is
// what kernels rely on.

#include "ops/cuda/attention/tensor_core.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>
#include <vector>

#include "runtime/base/float16.h"

namespace weft {
namespace {

class Stream {
 public:
  Stream() { cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(handle_); }
  // Runs one block and waits for it.
  template <class... Parameters, class... Arguments>
  void Run(int threads, void (*kernel)(Parameters...), Arguments... arguments) {
    cudaLaunchConfig_t config;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.stream = handle_;
    cudaLaunchKernelEx(&config, kernel, arguments...);
    cudaStreamSynchronize(handle_);
  }

 private:
  cudaStream_t handle_ = nullptr;
};

template <class T>
std::vector<T> RandomHalves(int count, std::mt19937& random) {
  std::uniform_real_distribution<float> numbers(-2, 2);
  std::vector<T> values;
  for (int i = 0; i < count; ++i) values.push_back(T(numbers(random)));
  return values;
}

// d [16, 8] += a [16, 16] b [16, 8], all row-major.
template <class T>
__global__ void MmaKernel(const T* a, const T* b, float* d) {
  const int g = static_cast<int>(threadIdx.x) / 4;
  const int c = static_cast<int>(threadIdx.x) % 4;
  const auto pair = [](T first, T second) {
    return first.bits() | static_cast<uint32_t>(second.bits()) << 16;
  };
  const auto of_a = [&](int row, int column) { return pair(a[row * 16 + column], a[row * 16 + column + 1]); };
  const auto of_b = [&](int row, int column) { return pair(b[row * 8 + column], b[(row + 1) * 8 + column]); };
  const uint32_t left[4] = {of_a(g, 2 * c), of_a(g + 8, 2 * c), of_a(g, 2 * c + 8), of_a(g + 8, 2 * c + 8)};
  float* const mine[4] = {d + g * 8 + 2 * c, d + g * 8 + 2 * c + 1, d + (g + 8) * 8 + 2 * c,
                          d + (g + 8) * 8 + 2 * c + 1};
  float sums[4] = {*mine[0], *mine[1], *mine[2], *mine[3]};
  Mma<T>(sums, left, of_b(2 * c, g), of_b(2 * c + 8, g));
  for (int x = 0; x < 4; ++x) *mine[x] = sums[x];
}

template <class T>
void TestMma() {
  std::mt19937 random(5);
  Stream stream;
  const std::vector<T> a = RandomHalves<T>(16 * 16, random);
  const std::vector<T> b = RandomHalves<T>(16 * 8, random);
  std::vector<float> d(16 * 8);
  for (int i = 0; i < 16 * 8; ++i) d[i] = static_cast<float>(i);
  stream.Run(32, MmaKernel<T>, a.data(), b.data(), d.data());
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      double expected = i * 8 + j;
      for (int k = 0; k < 16; ++k) {
        expected += static_cast<double>(a[i * 16 + k]) * static_cast<double>(b[k * 8 + j]);
      }
      EXPECT_NEAR(d[i * 8 + j], expected, 1e-4) << i << ", " << j;
    }
  }
}

TEST(TensorCoreTest, MmaOfBF16) { TestMma<BFloat16>(); }
TEST(TensorCoreTest, MmaOfF16) { TestMma<Float16>(); }

// out [lane, 4, 2]: what a lane gets of 32 rows of 8.
__global__ void LoadKernel(const Float16* rows, Float16* out, bool transposed) {
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t matrices[4];
  if (transposed) {
    LoadTransposedMatrices(rows + lane * 8, matrices);
  } else {
    LoadMatrices(rows + lane * 8, matrices);
  }
  for (int m = 0; m < 4; ++m) {
    out[lane * 8 + 2 * m] = Float16::FromBits(static_cast<uint16_t>(matrices[m]));
    out[lane * 8 + 2 * m + 1] = Float16::FromBits(static_cast<uint16_t>(matrices[m] >> 16));
  }
}

TEST(TensorCoreTest, MatricesByRowsAndColumns) {
  Stream stream;
  struct alignas(16) Rows {
    Float16 at[32 * 8];
  } rows;
  for (int i = 0; i < 32 * 8; ++i) rows.at[i] = Float16(static_cast<float>(i));  // exact
  for (bool transposed : {false, true}) {
    std::vector<Float16> out(32 * 8);
    stream.Run(32, LoadKernel, static_cast<const Float16*>(rows.at), out.data(), transposed);
    for (int lane = 0; lane < 32; ++lane) {
      for (int m = 0; m < 4; ++m) {
        for (int i = 0; i < 2; ++i) {
          const int row = transposed ? lane % 4 * 2 + i : lane / 4;
          const int column = transposed ? lane / 4 : lane % 4 * 2 + i;
          EXPECT_EQ(static_cast<float>(out[lane * 8 + 2 * m + i]), (8 * m + row) * 8 + column)
              << "lane " << lane << ", matrix " << m;
        }
      }
    }
  }
}

TEST(TensorCoreTest, PairsAreRounded) {
  EXPECT_EQ(PackPair<BFloat16>(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(PackPair<Float16>(1.0f, -2.0f), 0xc0003c00u);
  EXPECT_EQ(PackPair<BFloat16>(1.00390625f, 1.01171875f), 0x3f823f80u);  // ties go to even
  EXPECT_EQ(QuickExp2(-INFINITY), 0.0f);
  EXPECT_EQ(QuickExp2(3.0f), 8.0f);
}

__global__ void CopyKernel(const float* from, float* seen) {
  alignas(16) __shared__ float tile[3][4];
  for (float& value : tile[2]) value = 7;
  CopyAsync<16>(tile[0], from, true);
  CopyAsync<16>(tile[1], from, false);
  CopyAsync<4>(tile[2] + 1, from, true);
  for (int i = 0; i < 12; ++i) seen[i] = tile[i / 4][i % 4];
  WaitForCopies();
  for (int i = 0; i < 12; ++i) seen[12 + i] = tile[i / 4][i % 4];
}

TEST(TensorCoreTest, CopiesArriveWhenTheyAreWaitedFor) {
  Stream stream;
  alignas(16) const float from[4] = {1, 2, 3, 4};
  std::vector<float> seen(24, -1.0f);
  stream.Run(1, CopyKernel, from, seen.data());
  for (int i : {0, 3, 4, 7, 9}) EXPECT_TRUE(std::isnan(seen[i])) << i;
  EXPECT_EQ(std::vector<float>(seen.begin() + 12, seen.end()),
            (std::vector<float>{1, 2, 3, 4, 0, 0, 0, 0, 7, 1, 7, 7}));
}

// What a GPU would answer by a hang, a fault or anything at all.
__global__ void HalfAWarp(const Float16* rows) {
  uint32_t matrices[4];
  if (threadIdx.x < 16) LoadMatrices(rows, matrices);
}
__global__ void TwoInstructions(const Float16* rows) {
  uint32_t matrices[4];
  if (threadIdx.x < 16) {
    LoadMatrices(rows, matrices);
  } else {
    LoadTransposedMatrices(rows, matrices);
  }
}
__global__ void Misaligned(const Float16* rows) {
  uint32_t matrices[4];
  LoadMatrices(rows + 1, matrices);
}

TEST(TensorCoreTest, MisuseIsAnError) {
  Stream stream;
  alignas(16) const Float16 rows[16] = {};
  const Float16* const pointer = rows;
  EXPECT_THROW(stream.Run(32, HalfAWarp, pointer), std::logic_error);
  EXPECT_THROW(stream.Run(16, HalfAWarp, pointer), std::logic_error);
  EXPECT_THROW(stream.Run(32, TwoInstructions, pointer), std::logic_error);
  EXPECT_THROW(stream.Run(32, Misaligned, pointer), std::logic_error);
}

}  // namespace
}  // namespace weft
