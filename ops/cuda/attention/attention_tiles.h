#ifndef WEFT_OPS_CUDA_ATTENTION_ATTENTION_TILES_H_
#define WEFT_OPS_CUDA_ATTENTION_ATTENTION_TILES_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "runtime/base/dtype.h"
#include "runtime/tensor/convert.h"

namespace weft {

// Tiles of heads in shared memory and their products, which attention and its gradients are made of.
//
// A block has 256 threads as 16 x 16: thread (i, j) owns rows i, i + 16, .. of a product and columns j,
// j + 16, .. of scores, or vectors of 16 bytes j, j + 16, .. of rows of e elements. Products are plain
// multiply-adds in the type that T is computed in; flash_tiles.h has those of halves on tensor cores.

inline constexpr int kTileEdge = 16;
inline constexpr int kTileThreads = kTileEdge * kTileEdge;
inline constexpr int kMostHeadElements = 256;

// What elements T are computed in.
template <class T>
using AttentionSum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// So many rows that four tiles and the scores fit the shared memory of an A100.
template <class T, int kE>
inline constexpr int kMostTileRows = kE * sizeof(AttentionSum<T>) <= 512    ? 64
                                     : kE * sizeof(AttentionSum<T>) <= 1024 ? 32
                                                                            : 16;

// Of elements T, with heads of at most kE elements, a multiple of 64, and kNumRows rows, a multiple of kTileEdge.
template <class T, int kE, int kNumRows = kMostTileRows<T, kE>>
struct AttentionTile {
  using Element = T;
  using C = AttentionSum<T>;
  static constexpr int kHeadElements = kE;
  static constexpr int kVector = 16 / sizeof(C);
  struct alignas(16) Vector {
    C at[kVector];
  };
  static constexpr int kRows = kNumRows;
  // Elements between rows, an odd number of vectors: neighbours in other banks.
  static constexpr int kStride = kE + kVector;
  static constexpr int kScoreStride = kRows + kVector;
  static constexpr int kElements = kRows * kStride;
  static constexpr int kScoreElements = kRows * kScoreStride;
  static constexpr int kRowsOfThread = kRows / kTileEdge;
  static constexpr int kVectorsOfThread = kE / kVector / kTileEdge;

  using Scores = C[kRowsOfThread][kRowsOfThread];
  using Sums = Vector[kRowsOfThread][kVectorsOfThread];

  static constexpr size_t SharedBytes(int num_tiles) {
    return (num_tiles * kElements + kScoreElements) * sizeof(C);
  }
};

inline __device__ int TileRow() { return static_cast<int>(threadIdx.x) / kTileEdge; }
inline __device__ int TileColumn() { return static_cast<int>(threadIdx.x) % kTileEdge; }

// Rows of one head in memory.
template <class T>
struct CudaHeadRows {
  T* data = nullptr;
  int64_t stride = 0;
  bool has_vectors = false;  // rows are whole vectors of 16 bytes, at such addresses
};

// tile = rows [first, first + kRows) of `from`, 0 beyond row `end` and beyond element `e`.
template <class Tile>
__device__ void LoadTile(const CudaHeadRows<const typename Tile::Element>& from, int64_t first, int64_t end,
                         int e, typename Tile::C* tile) {
  using T = typename Tile::Element;
  using C = typename Tile::C;
  constexpr int kChunk = 16 / sizeof(T);
  constexpr int kChunks = Tile::kHeadElements / kChunk;
  struct alignas(16) Chunk {
    T at[kChunk];
  };
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < Tile::kRows * kChunks; i += kTileThreads) {
    const int row = i / kChunks;
    const int column = i % kChunks * kChunk;
    C* const to = tile + row * Tile::kStride + column;
    const T* const source = from.data + (first + row) * from.stride + column;
    if (first + row < end && column < e && from.has_vectors) {
      const Chunk chunk = *reinterpret_cast<const Chunk*>(source);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) to[j] = static_cast<C>(chunk.at[j]);
    } else {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        to[j] = first + row < end && column + j < e ? static_cast<C>(source[j]) : C(0);
      }
    }
  }
}

// Rows [first, ..) of `to` = factor(i) * sums[i], those below `end`.
template <class Tile, class Factor>
__device__ void StoreSums(const typename Tile::Sums& sums, const Factor& factor, int64_t first, int64_t end,
                          int e, const CudaHeadRows<typename Tile::Element>& to) {
  using T = typename Tile::Element;
  struct alignas(sizeof(T) * Tile::kVector) Pack {
    T at[Tile::kVector];
  };
#pragma unroll
  for (int i = 0; i < Tile::kRowsOfThread; ++i) {
    const int64_t row = first + TileRow() + i * kTileEdge;
    if (row >= end) continue;
    const auto scale = factor(i);
#pragma unroll
    for (int j = 0; j < Tile::kVectorsOfThread; ++j) {
      const int column = (TileColumn() + j * kTileEdge) * Tile::kVector;
      if (column >= e) continue;
      Pack pack;
#pragma unroll
      for (int v = 0; v < Tile::kVector; ++v) pack.at[v] = ConvertElement<T>(scale * sums[i][j].at[v]);
      T* const target = to.data + row * to.stride + column;
      if (to.has_vectors) {
        *reinterpret_cast<Pack*>(target) = pack;
      } else {
        for (int v = 0; v < Tile::kVector && column + v < e; ++v) target[v] = pack.at[v];
      }
    }
  }
}

template <class Tile>
__device__ void ClearSums(typename Tile::Sums& sums) {
#pragma unroll
  for (int i = 0; i < Tile::kRowsOfThread; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kVectorsOfThread; ++j) sums[i][j] = {};
  }
}

// scores [rows of a, rows of b] = a b^T, tiles of rows of e elements.
template <class Tile>
__device__ void MultiplyRows(const typename Tile::C* a, const typename Tile::C* b, int e,
                             typename Tile::Scores& scores) {
  using Vector = typename Tile::Vector;
  constexpr int kM = Tile::kRowsOfThread;
#pragma unroll
  for (int i = 0; i < kM; ++i) {
#pragma unroll
    for (int j = 0; j < kM; ++j) scores[i][j] = 0;
  }
  // Each vector that is loaded from shared memory is used kM times; the threads of half a warp read the same
  // x, which is broadcast.
#pragma unroll 2
  for (int k = 0; k < e; k += Tile::kVector) {
    Vector x[kM];
    Vector y[kM];
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      x[i] = *reinterpret_cast<const Vector*>(a + (TileRow() + i * kTileEdge) * Tile::kStride + k);
      y[i] = *reinterpret_cast<const Vector*>(b + (TileColumn() + i * kTileEdge) * Tile::kStride + k);
    }
#pragma unroll
    for (int v = 0; v < Tile::kVector; ++v) {
#pragma unroll
      for (int i = 0; i < kM; ++i) {
#pragma unroll
        for (int j = 0; j < kM; ++j) scores[i][j] += x[i].at[v] * y[j].at[v];
      }
    }
  }
}

// sums[i][j] += x[i] * the thread's vectors of row `row` of m.
template <class Tile>
__device__ void AddScaledRow(const typename Tile::C (&x)[Tile::kRowsOfThread], const typename Tile::C* row,
                             typename Tile::Sums& sums) {
  using Vector = typename Tile::Vector;
#pragma unroll
  for (int j = 0; j < Tile::kVectorsOfThread; ++j) {
    const Vector y = *reinterpret_cast<const Vector*>(row + (TileColumn() + j * kTileEdge) * Tile::kVector);
#pragma unroll
    for (int i = 0; i < Tile::kRowsOfThread; ++i) {
#pragma unroll
      for (int v = 0; v < Tile::kVector; ++v) sums[i][j].at[v] += x[i] * y.at[v];
    }
  }
}

// sums += scores m: a row for each row of scores, the sum of the first `rows` rows of the tile m.
template <class Tile>
__device__ void MultiplyByRows(const typename Tile::C* scores, const typename Tile::C* m, int rows,
                               typename Tile::Sums& sums) {
#pragma unroll 4
  for (int c = 0; c < rows; ++c) {
    typename Tile::C x[Tile::kRowsOfThread];
#pragma unroll
    for (int i = 0; i < Tile::kRowsOfThread; ++i) {
      x[i] = scores[(TileRow() + i * kTileEdge) * Tile::kScoreStride + c];
    }
    AddScaledRow<Tile>(x, m + c * Tile::kStride, sums);
  }
}

// sums += scores^T m: a row for each column of scores, the sum of the first `rows` rows of the tile m.
template <class Tile>
__device__ void MultiplyTransposed(const typename Tile::C* scores, const typename Tile::C* m, int rows,
                                   typename Tile::Sums& sums) {
#pragma unroll 4
  for (int c = 0; c < rows; ++c) {
    typename Tile::C x[Tile::kRowsOfThread];
#pragma unroll
    for (int i = 0; i < Tile::kRowsOfThread; ++i) {
      x[i] = scores[c * Tile::kScoreStride + TileRow() + i * kTileEdge];
    }
    AddScaledRow<Tile>(x, m + c * Tile::kStride, sums);
  }
}

// Rows of a tile that begins at `first` of `end`.
template <class Tile>
__device__ int RowsOfTile(int64_t first, int64_t end) {
  return end - first < Tile::kRows ? static_cast<int>(end - first) : Tile::kRows;
}

// Puts the thread's scores into shared memory, where the products above read them.
template <class Tile>
__device__ void StoreScores(const typename Tile::Scores& from, typename Tile::C* scores) {
#pragma unroll
  for (int i = 0; i < Tile::kRowsOfThread; ++i) {
#pragma unroll
    for (int j = 0; j < Tile::kRowsOfThread; ++j) {
      scores[(TileRow() + i * kTileEdge) * Tile::kScoreStride + TileColumn() + j * kTileEdge] = from[i][j];
    }
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_ATTENTION_ATTENTION_TILES_H_
