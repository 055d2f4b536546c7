#ifndef WEFT_OPS_CPU_FLOAT_SPANS_H_
#define WEFT_OPS_CPU_FLOAT_SPANS_H_

#include <cstdint>

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

using UnarySpan = void (*)(const float* x, float* y, int64_t n);
using BinarySpan = void (*)(const float* a, const float* b, float* y, int64_t n);

UnarySpan FloatSpan(UnaryFunction function);
BinarySpan FloatSpan(BinaryFunction function);

}  // namespace weft

#endif  // WEFT_OPS_CPU_FLOAT_SPANS_H_
