#ifndef WEFT_OPS_CUDA_WORDS_H_
#define WEFT_OPS_CUDA_WORDS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "runtime/base/dtype.h"

namespace weft {

// Copies do not look into elements: they move words of 1 to 16 bytes.

// The widest word, of at most 16 bytes, that divides `bytes` and both addresses.
inline int64_t WidestWord(int64_t bytes, const void* from, const void* to) {
  const uint64_t bits = static_cast<uint64_t>(bytes) | reinterpret_cast<uintptr_t>(from) |
                        reinterpret_cast<uintptr_t>(to) | 16u;
  return static_cast<int64_t>(bits & (~bits + 1));
}

// Calls `function` with an unsigned type of so many bytes.
template <class Function>
void VisitWordOf(int64_t bytes, const Function& function) {
  switch (bytes) {
    case 1:
      return function(TypeTag<uint8_t>());
    case 2:
      return function(TypeTag<uint16_t>());
    case 4:
      return function(TypeTag<uint32_t>());
    case 8:
      return function(TypeTag<uint2>());
    default:
      return function(TypeTag<uint4>());
  }
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_WORDS_H_
