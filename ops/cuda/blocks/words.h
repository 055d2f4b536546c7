#ifndef WEFT_OPS_CUDA_BLOCKS_WORDS_H_
#define WEFT_OPS_CUDA_BLOCKS_WORDS_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "runtime/base/dtype.h"
#include "runtime/tensor/cuda/visit_word.h"

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
  return bytes == sizeof(uint4) ? function(TypeTag<uint4>()) : VisitWord(bytes, function);
}

}  // namespace weft

#endif  // WEFT_OPS_CUDA_BLOCKS_WORDS_H_
