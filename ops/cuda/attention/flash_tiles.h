#ifndef WEFT_OPS_CUDA_ATTENTION_FLASH_TILES_H_
#define WEFT_OPS_CUDA_ATTENTION_FLASH_TILES_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/attention/attention_heads.h"
#include "ops/cuda/attention/attention_tiles.h"
#include "ops/cuda/attention/tensor_core.h"

namespace weft {

// Tiles of heads of bf16 or f16 in shared memory and their products on tensor cores, which attention in
// halves and its gradients are made of.
//
// A block has 4 warps. Each owns 16 kM rows of the tile that the block stays with, and meets all rows of the
// tiles that the block walks over. A product of a warp is an array of sums [kM][columns / 8][4]: piece (i, j)
// holds the rows 16 i .. and the columns 8 j .., and a lane's four numbers of it are those of d in
// tensor_core.h.

inline constexpr int kFlashWarps = 4;
inline constexpr int kFlashThreads = 32 * kFlashWarps;
inline constexpr int kMostFlashElements = 128;

// Elements between rows of a tile: 16 bytes more than kE have, which puts the 8 rows that a matrix is loaded
// from, and the rows that a warp writes sums to, into different banks.
template <int kE>
inline constexpr int kFlashStride = kE + 8;

inline __device__ int FlashLane() { return static_cast<int>(threadIdx.x) % 32; }
inline __device__ int FlashWarp() { return static_cast<int>(threadIdx.x) / 32; }
// Where number x of a lane's four lies in its piece.
inline __device__ int FlashRow(int x) { return FlashLane() / 4 + x / 2 * 8; }
inline __device__ int FlashColumn(int x) { return FlashLane() % 4 * 2 + x % 2; }

// The extents that kernels count with.
struct FlashExtents {
  int s, t, e;
  bool causal;

  __device__ explicit FlashExtents(const CudaAttention& n)
      : s(static_cast<int>(n.s)), t(static_cast<int>(n.t)), e(static_cast<int>(n.e)), causal(n.causal) {}
  // As CudaAttention has them.
  __device__ int SeenBy(int query) const { return causal && query < s ? query + (t - s) + 1 : t; }
  __device__ int FirstQuery(int key) const { return causal && key > t - s ? key - (t - s) : 0; }
};

// Begins to copy the rows [first, first + kRows) of `from` into a tile, 0 beyond row `end` and element `e`.
// Rows that are not whole vectors are copied at once, element by element.
template <class T, int kE, int kRows>
__device__ void LoadFlashTile(const CudaHeadRows<const T>& from, int first, int end, int e, T* tile) {
  constexpr int kChunk = 16 / sizeof(T);
  constexpr int kChunks = kE / kChunk;
  constexpr int kRowsAtOnce = kFlashThreads / kChunks;
  static_assert(kRows % kRowsAtOnce == 0);
  const int column = static_cast<int>(threadIdx.x) % kChunks * kChunk;
  const int own = static_cast<int>(threadIdx.x) / kChunks;
  const T* const source = from.data + (first + own) * from.stride + column;
  T* const target = tile + own * kFlashStride<kE> + column;
  if (from.has_vectors) {
#pragma unroll
    for (int row = 0; row < kRows; row += kRowsAtOnce) {
      const bool inside = first + own + row < end && column < e;
      CopyAsync<16>(target + row * kFlashStride<kE>, inside ? source + row * from.stride : from.data, inside);
    }
    return;
  }
  for (int row = 0; row < kRows; row += kRowsAtOnce) {
    for (int i = 0; i < kChunk; ++i) {
      const bool inside = first + own + row < end && column + i < e;
      target[row * kFlashStride<kE> + i] = inside ? source[row * from.stride + i] : T(0.0f);
    }
  }
}

// sums [16 kM, 8 kPieces] = a b^T, of the warp's rows of one tile and the first 8 kPieces rows of another.
template <class T, int kE, int kM, int kPieces>
__device__ void MultiplyFlashRows(const T* a, const T* b, float (&sums)[kM][kPieces][4]) {
  // The row that a lane names for LoadMatrices. Of a: matrices 0 and 1 are the upper and the lower 8 rows of
  // 8 columns, 2 and 3 those of the next 8. Rows of b are columns of the right operand, so its pairs are
  // neighbours in a row: matrices 0 and 1 are the first 8 rows, of 8 columns and of the next 8, and 2 and 3
  // the next rows, so one load gives two pieces.
  const int lane = FlashLane();
  const T* const own_a = a + lane % 16 * kFlashStride<kE> + lane / 16 * 8;
  const T* const own_b = b + (lane % 8 + lane / 16 * 8) * kFlashStride<kE> + lane / 8 % 2 * 8;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int x = 0; x < 4; ++x) sums[i][j][x] = 0;
    }
  }
#pragma unroll
  for (int step = 0; step < kE / 16; ++step) {
    uint32_t left[kM][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) LoadMatrices(own_a + i * 16 * kFlashStride<kE> + step * 16, left[i]);
#pragma unroll
    for (int j = 0; j < kPieces; j += 2) {
      uint32_t right[4];
      LoadMatrices(own_b + j * 8 * kFlashStride<kE> + step * 16, right);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        Mma<T>(sums[i][j], left[i], right[0], right[1]);
        Mma<T>(sums[i][j + 1], left[i], right[2], right[3]);
      }
    }
  }
}

// sums [16 kM, kE] += p m, where p [16 kM, 8 kPieces] is rounded to T and m is a tile of as many rows.
template <class T, int kE, int kM, int kPieces>
__device__ void AddFlashProduct(const float (&p)[kM][kPieces][4], const T* m, float (&sums)[kM][kE / 8][4]) {
  // The pairs of m are neighbours in a column, so matrices are transposed; they lie as those of `a` above.
  const T* const own = m + FlashLane() % 16 * kFlashStride<kE> + FlashLane() / 16 * 8;
#pragma unroll
  for (int step = 0; step < kPieces / 2; ++step) {
    uint32_t left[kM][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float(&piece)[4] = p[i][2 * step + r / 2];
        left[i][r] = PackPair<T>(piece[r % 2 * 2], piece[r % 2 * 2 + 1]);
      }
    }
#pragma unroll
    for (int j = 0; j < kE / 8; j += 2) {
      uint32_t right[4];
      LoadTransposedMatrices(own + step * 16 * kFlashStride<kE> + j * 8, right);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        Mma<T>(sums[i][j], left[i], right[0], right[1]);
        Mma<T>(sums[i][j + 1], left[i], right[2], right[3]);
      }
    }
  }
}

// The rows of `to` from `first` on, below `end`, = factor * sums. They pass through `rows`, the warp's own of
// a tile that no other warp reads, to become whole vectors.
template <class T, int kE, int kM>
__device__ void StoreFlashSums(const float (&sums)[kM][kE / 8][4], float factor, int first, int end, int e,
                               T* rows, const CudaHeadRows<T>& to) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kE / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const pair = sums[i][j] + 2 * half;
        T* const target = rows + (16 * i + FlashRow(2 * half)) * kFlashStride<kE> + 8 * j + FlashColumn(0);
        *reinterpret_cast<uint32_t*>(target) = PackPair<T>(pair[0] * factor, pair[1] * factor);
      }
    }
  }
  __syncwarp();
  constexpr int kChunk = 16 / sizeof(T);
  constexpr int kChunks = kE / kChunk;
  for (int index = FlashLane(); index < 16 * kM * kChunks; index += 32) {
    const int row = index / kChunks;
    const int column = index % kChunks * kChunk;
    if (first + row >= end || column >= e) continue;
    const T* const source = rows + row * kFlashStride<kE> + column;
    T* const target = to.data + (first + row) * to.stride + column;
    if (to.has_vectors) {
      *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
    } else {
      for (int i = 0; i < kChunk && column + i < e; ++i) target[i] = source[i];
    }
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_FLASH_TILES_H_
