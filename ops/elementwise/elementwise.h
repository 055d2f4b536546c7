#ifndef WEFT_OPS_ELEMENTWISE_ELEMENTWISE_H_
#define WEFT_OPS_ELEMENTWISE_ELEMENTWISE_H_

#include "ops/op/op.h"

namespace weft {

// Ops that compute every element of the output from the elements of the operands at the same place.
//
// Dtypes: f32, f64, bf16, f16 (halves compute in float and round once); add, sub, mul, neg and scale also i32
//         and i64, which wrap. Operands of one call have one dtype, which is the output's.
// Errors: InvalidArgument naming the op and the types if dtypes differ, shapes do not broadcast, or the dtype
//         is not among these.

// a + b and so on, operands broadcast to their common shape as in NumPy.
extern const Op<> kAdd;
extern const Op<> kSub;
extern const Op<> kMul;
extern const Op<> kDiv;

// Functions of one operand. rsqrt is 1 / sqrt; relu passes NaN on; silu is x * sigmoid(x).
extern const Op<> kNeg;
extern const Op<> kExp;
extern const Op<> kLog;
extern const Op<> kSqrt;
extern const Op<> kRsqrt;
extern const Op<> kTanh;
extern const Op<> kSquare;
extern const Op<> kRelu;
extern const Op<> kSilu;

// x * Phi(x).
// Source: Hendrycks & Gimpel, "Gaussian Error Linear Units", arXiv 1606.08415: exact by erf, else by tanh, as
//         GPT-2.
struct GeluAttributes {
  bool exact = false;

  bool operator==(const GeluAttributes&) const = default;
};
extern const Op<GeluAttributes> kGelu;

// x * factor.
// Errors: InvalidArgument, from the kernel, for integers times a number that is not whole.
struct ScaleScalars {
  double factor = 1;
};
extern const Op<NoAttributes, ScaleScalars> kScale;

// dy times the derivative, in one pass: of relu and tanh from their output, of the others from their operand.
extern const Op<> kReluGrad;                // (y, dy)
extern const Op<> kTanhGrad;                // (y, dy)
extern const Op<> kSiluGrad;                // (x, dy)
extern const Op<GeluAttributes> kGeluGrad;  // (x, dy)

// Emits p times the second derivative of gelu at x: for the backward of what has kGeluGrad in it.
Value EmitGeluCurvature(Emitter& emitter, Value x, Value p, const GeluAttributes& attributes);

}  // namespace weft

#endif  // WEFT_OPS_ELEMENTWISE_ELEMENTWISE_H_
