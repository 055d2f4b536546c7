#ifndef WEFT_RUNTIME_TENSOR_CUDA_VISIT_WORD_H_
#define WEFT_RUNTIME_TENSOR_CUDA_VISIT_WORD_H_

#include <cstdint>

#include "runtime/base/dtype.h"

namespace weft {

// Calls `function` with an unsigned integer of the item's size: what moves elements does not look into them.
template <class Function>
void VisitWord(int64_t item_size, const Function& function) {
  switch (item_size) {
    case 1:
      return function(TypeTag<uint8_t>());
    case 2:
      return function(TypeTag<uint16_t>());
    case 4:
      return function(TypeTag<uint32_t>());
    default:
      return function(TypeTag<uint64_t>());
  }
}

}  // namespace weft

#endif  // WEFT_RUNTIME_TENSOR_CUDA_VISIT_WORD_H_
