#ifndef WEFT_OPS_CUDA_BLOCKS_ROW_PACK_H_
#define WEFT_OPS_CUDA_BLOCKS_ROW_PACK_H_

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "runtime/base/float16.h"

namespace weft {

// What kernels compute in: float for halves, else the type itself.
template <class T>
using WideOf = std::conditional_t<std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>, float, T>;

// Neighbouring elements that one access of 16 bytes moves.
template <class T>
struct alignas(16) RowPack {
  static constexpr int kSize = static_cast<int>(16 / sizeof(T));
  T values[kSize];
};

template <class T>
__device__ bool IsPackAligned(const T* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(RowPack<T>) == 0;
}

// Elements [i, i + kSize) of a row of n; T(0) beyond its end. In one access where they lie so.
// The choice is made on the device for each pack: rows of an odd length begin at any address, and bits depend
// on neither. kWhole: it is known that they lie so. Then no branch keeps a thread from having several loads under way.
template <bool kWhole = false, class T>
__device__ RowPack<T> LoadPack(const T* row, int64_t i, int64_t n) {
  if constexpr (kWhole) {
    return *reinterpret_cast<const RowPack<T>*>(row + i);
  } else {
    if (i + RowPack<T>::kSize <= n && IsPackAligned(row + i)) return LoadPack<true>(row, i, n);
    RowPack<T> pack;
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) pack.values[j] = i + j < n ? row[i + j] : T(0);
    return pack;
  }
}

// Writes those of them that lie in the row. A whole pack goes as one word: nvcc is free to cut the store of a struct up, and does.
template <bool kWhole = false, class T>
__device__ void StorePack(const RowPack<T>& pack, T* row, int64_t i, int64_t n) {
  if constexpr (kWhole) {
    *reinterpret_cast<uint4*>(row + i) = std::bit_cast<uint4>(pack);
  } else {
    if (i + RowPack<T>::kSize <= n && IsPackAligned(row + i)) return StorePack<true>(pack, row, i, n);
#pragma unroll
    for (int j = 0; j < RowPack<T>::kSize; ++j) {
      if (i + j < n) row[i + j] = pack.values[j];
    }
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_ROW_PACK_H_
