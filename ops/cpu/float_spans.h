#ifndef WEFT_OPS_CPU_FLOAT_SPANS_H_
#define WEFT_OPS_CPU_FLOAT_SPANS_H_

#include <cstdint>

namespace weft {

// Elementwise functions over arrays of float, compiled for every instruction set level and chosen at run
// time.
//
// y[i] depends on the elements i alone, bit for bit, wherever the array is cut. Outputs may be an input's
// array. Errors against the exact value: exp, log, tanh and the gradients within 4 ulp, gelu and silu within
// 1e-6 * |x|; the others round correctly. NaN gives NaN.
enum class UnaryFunction { kNeg, kExp, kLog, kSqrt, kRsqrt, kTanh, kSquare, kRelu, kGelu, kSilu };
enum class BinaryFunction {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kReluGrad,
  kGeluGrad,
  kSiluGrad
};  // gradients: (x or y, dy)

using UnarySpan = void (*)(const float* x, float* y, int64_t n);
using BinarySpan = void (*)(const float* a, const float* b, float* y, int64_t n);

UnarySpan FloatSpan(UnaryFunction function);
BinarySpan FloatSpan(BinaryFunction function);

}  // namespace weft

#endif  // WEFT_OPS_CPU_FLOAT_SPANS_H_
