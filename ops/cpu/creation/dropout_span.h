#ifndef WEFT_OPS_CPU_CREATION_DROPOUT_SPAN_H_
#define WEFT_OPS_CPU_CREATION_DROPOUT_SPAN_H_

#include <cstdint>

#include "runtime/base/float16.h"
#include "runtime/base/philox.h"

namespace weft {

// y[i] = x[i] * scale where the top 24 bits of the random word of element first + i reach `threshold`, else
// 0; of bf16 the product is rounded. The word is RandomWords(key, (first + i) / 4)[(first + i) % 4]. y may be
// x. In one pass: words are made in registers, so that memory works while they are. All instruction set
// levels give the same bits.
//
// Errors: InvalidArgument as RandomWords.
void DropoutSpan(const RandomKey& key, uint64_t first, const float* x, uint32_t threshold, float scale,
                 float* y, int64_t n);
void DropoutSpan(const RandomKey& key, uint64_t first, const BFloat16* x, uint32_t threshold, float scale,
                 BFloat16* y, int64_t n);

}  // namespace weft

#endif  // WEFT_OPS_CPU_CREATION_DROPOUT_SPAN_H_
