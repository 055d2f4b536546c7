#ifndef WEFT_OPS_CPU_SPANS_FLOAT_SPANS_H_
#define WEFT_OPS_CPU_SPANS_FLOAT_SPANS_H_

#include <cstdint>

#include "runtime/base/float16.h"

namespace weft {

// Elementwise functions over arrays of float, compiled for every instruction set level and chosen at run
// time.
//
// y[i] depends on the elements i alone, bit for bit, wherever the array is cut. Outputs may be an input's
// array. Bounds that the test holds: exp 3 ulp, log 4, tanh 5, rsqrt 2; gelu (kGelu by tanh, kGeluErf exact)
// and silu 1e-6 * |x|, kGeluErf besides 12 ulp down to -4, where erf alone would leave no digit; their
// gradients 2e-6 * |dy|; the others round once, correctly. NaN gives NaN. Levels with and without fused
// multiply-add differ in last bits in exp, log, tanh, gelu, silu and gradients of the latter two.
enum class UnaryFunction { kNeg, kExp, kLog, kSqrt, kRsqrt, kTanh, kSquare, kRelu, kGelu, kGeluErf, kSilu };
enum class BinaryFunction {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kReluGrad,
  kGeluGrad,
  kGeluErfGrad,
  kSiluGrad
};  // gradients: (x or y, dy)

template <class S>
using UnarySpan = void (*)(const S* x, S* y, int64_t n);
template <class S>
using BinarySpan = void (*)(const S* a, const S* b, S* y, int64_t n);

UnarySpan<float> FloatSpan(UnaryFunction function);
BinarySpan<float> FloatSpan(BinaryFunction function);

// The same of bf16, bit for bit what FloatSpan makes of the elements as floats, rounded, without the way
// through memory; but a signalling nan may stay one.
UnarySpan<BFloat16> BFloat16Span(UnaryFunction function);
BinarySpan<BFloat16> BFloat16Span(BinaryFunction function);

}  // namespace weft

#endif  // WEFT_OPS_CPU_SPANS_FLOAT_SPANS_H_
