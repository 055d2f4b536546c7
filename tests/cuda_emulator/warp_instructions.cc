#include "warp_instructions.h"

#include <cstring>
#include <stdexcept>

#include "runtime/base/float16.h"
#include "tests/cuda_emulator/block_runner.h"

namespace cuda_emulator {
namespace {

constexpr int kWarp = 32;
constexpr int kM = 16;
constexpr int kN = 8;
constexpr int kK = 16;

struct MmaOperands {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};

template <class T>
float Half(uint32_t pair, int which) {
  return static_cast<float>(T::FromBits(static_cast<uint16_t>(pair >> (16 * which))));
}

// Register r of a lane of the left operand holds two neighbours of a row; of the right one, of a column; of
// the sums, the registers 2 r and 2 r + 1 do, of a row.
template <class T>
void MultiplyTogether(void* const* lanes) {
  float a[kM][kK];
  float b[kK][kN];
  const auto of = [&](int lane) { return static_cast<const MmaOperands*>(lanes[lane]); };
  for (int lane = 0; lane < kWarp; ++lane) {
    const int group = lane / 4;
    const int pair = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 4; ++r)
        a[group + r % 2 * 8][pair + half + r / 2 * 8] = Half<T>(of(lane)->a[r], half);
      for (int r = 0; r < 2; ++r) b[pair + half + r * 8][group] = Half<T>(of(lane)->b[r], half);
    }
  }
  float product[kM][kN];
  for (int i = 0; i < kM; ++i) {
    for (int j = 0; j < kN; ++j) product[i][j] = of(i % 8 * 4 + j / 2)->d[i / 8 * 2 + j % 2];
    for (int k = 0; k < kK; ++k) {
      for (int j = 0; j < kN; ++j) product[i][j] += a[i][k] * b[k][j];
    }
    for (int j = 0; j < kN; ++j) of(i % 8 * 4 + j / 2)->d[i / 8 * 2 + j % 2] = product[i][j];
  }
}

struct MatrixOperands {
  const void* row;
  uint32_t* fragments;
};

// Lane 8 m + r names row r of matrix m; register m of a lane holds two neighbours of that matrix, or of its
// transpose.
template <bool kTransposed>
void LoadTogether(void* const* lanes) {
  constexpr int kEdge = 8;
  for (int m = 0; m < 4; ++m) {
    uint16_t matrix[kEdge][kEdge];
    for (int r = 0; r < kEdge; ++r) {
      std::memcpy(matrix[r], static_cast<const MatrixOperands*>(lanes[m * kEdge + r])->row,
                  sizeof(matrix[r]));
    }
    for (int lane = 0; lane < kWarp; ++lane) {
      const int row = lane / 4;
      const int column = lane % 4 * 2;
      const uint32_t low = kTransposed ? matrix[column][row] : matrix[row][column];
      const uint32_t high = kTransposed ? matrix[column + 1][row] : matrix[row][column + 1];
      static_cast<const MatrixOperands*>(lanes[lane])->fragments[m] = low | high << 16;
    }
  }
}

void RequireAligned(const void* address, int num_bytes) {
  if (reinterpret_cast<uintptr_t>(address) % num_bytes != 0) {
    throw std::logic_error("a misaligned address in a CUDA kernel");
  }
}

}  // namespace

void MultiplyAccumulate(HalfType type, float* d, const uint32_t* a, const uint32_t* b) {
  MmaOperands operands = {d, a, b};
  Together(&operands,
           type == HalfType::kBF16 ? MultiplyTogether<weft::BFloat16> : MultiplyTogether<weft::Float16>);
}

void LoadMatrices(bool transposed, const void* row, uint32_t* fragments) {
  RequireAligned(row, 16);
  MatrixOperands operands = {row, fragments};
  Together(&operands, transposed ? LoadTogether<true> : LoadTogether<false>);
}

void CopyAsync(void* to, const void* from, int num_bytes) {
  constexpr int kPoison = 0xff;  // NaN in every floating type
  RequireAligned(to, num_bytes);
  RequireAligned(from, num_bytes);
  std::memset(to, kPoison, num_bytes);
  AsyncCopies().push_back({to, from, num_bytes});
}

void WaitAsync() {
  for (const AsyncCopy& copy : AsyncCopies()) {
    if (copy.from != nullptr) {
      std::memcpy(copy.to, copy.from, copy.num_bytes);
    } else {
      std::memset(copy.to, 0, copy.num_bytes);
    }
  }
  AsyncCopies().clear();
}

}  // namespace cuda_emulator
