#ifndef WEFT_OPS_CPU_OPTIMIZER_ADAMW_SPAN_H_
#define WEFT_OPS_CPU_OPTIMIZER_ADAMW_SPAN_H_

#include <cstdint>

#include "ops/optimizer/adamw_constants.h"

namespace weft {

// One pass over arrays of float, compiled for every instruction set level and chosen at run time. No fused
// multiply-adds: replicas of a parameter stay equal bit for bit on machines of different levels.
void AdamWFloatSpan(const AdamWConstants<float>& constants, float* p, float* m, float* v, const float* g,
                    int64_t n);

}  // namespace weft

#endif  // WEFT_OPS_CPU_OPTIMIZER_ADAMW_SPAN_H_
