#include "ops/cpu/spans/float_spans.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/spans/float_spans.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, which sets the target that they are compiled for.
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/spans/float_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

// gelu(x) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3). Beyond |x| = 10 the sigmoid is 0 or 1 to
// float.
// The limit keeps the argument of the exponential within what Exp2Bounded takes; x itself is multiplied
// outside of the clamp, so inf and nan pass.
constexpr float kGeluLimit = 10;
constexpr float kTwiceRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
constexpr float kLog2E = 1.44269504088896341f;

// By erf, gelu(x) = x * Phi(x). Below, Phi is under 5e-40.
constexpr float kGeluErfLimit = 13.2f;

// silu(x) = x * sigmoid(x). Below, the result is under 2e-36.
constexpr float kSiluLimit = 87;

struct Neg {
  static HWY_INLINE V Of(D, V x) { return hn::Neg(x); }
};
// Highway's Log is for positive finite numbers; what lies beyond them is put right by hand.
struct Log {
  static HWY_INLINE V Of(D d, V x) {
    const V zero = hn::Zero(d);
    const V infinity = hn::Inf(d);
    V y = hn::Log(d, x);
    y = hn::IfThenElse(hn::Eq(x, infinity), infinity, y);
    y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
    // Not Highway's nan, whose bits are all set: halves could not round it.
    y = hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, std::numeric_limits<float>::quiet_NaN()), y);
    return KeepNan(x, y);
  }
};
struct Sqrt {
  static HWY_INLINE V Of(D, V x) { return hn::Sqrt(x); }
};
// A division and a root, which IEEE rounds alike on every level. The processor's estimate has 12 or 14 bits,
// by level, and would need steps of Newton.
struct Rsqrt {
  static HWY_INLINE V Of(D d, V x) { return hn::Div(hn::Set(d, 1.0f), hn::Sqrt(x)); }
};
struct Tanh {
  // Beyond 10, tanh is 1 to float.
  static HWY_INLINE V Of(D d, V x) { return KeepNan(x, hn::Tanh(d, Clamp(d, x, 10.0f))); }
};
struct Square {
  static HWY_INLINE V Of(D, V x) { return hn::Mul(x, x); }
};
// By a comparison that is false for nan, which so passes; the processor's maximum drops it or not, by the
// order of its operands.
struct Relu {
  static HWY_INLINE V Of(D d, V x) { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x); }
};
// e^-2u: as a power of 2, so that the constants' product with log2(e) is taken here.
HWY_INLINE V GeluExp(D d, V c, V square) {
  const V linear = hn::Set(d, -kTwiceRootTwoOverPi * kLog2E);
  const V cubic = hn::Set(d, -kTwiceRootTwoOverPi * kLog2E * kCubic);
  return Exp2Bounded(hn::Mul(c, hn::MulAdd(square, cubic, linear)));
}
// As x times a sigmoid: 1 + tanh would cancel for x far below 0, where the sigmoid keeps its digits. It takes
// one exponential and one division.
struct Gelu {
  static HWY_INLINE V Of(D d, V x) {
    const V c = Clamp(d, x, kGeluLimit);
    const V y = hn::Div(x, hn::Add(hn::Set(d, 1.0f), GeluExp(d, c, hn::Mul(c, c))));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -kGeluLimit)), y);
  }
};

// exp(-a^2 / 2) and, from it, Phi(-a), for a in [0, kGeluErfLimit]: of relative error 3e-7, and 5e-6 where
// a^2, rounded, is large. Phi(-a) = exp(-a^2 / 2) t P(t), t = 1 / (1 + 0.3 a), P the minimax polynomial of
// relative error 1.3e-7; so small ones keep their digits, which 1 + erf would cancel.
struct NormalTail {
  V density, tail;

  HWY_INLINE NormalTail(D d, V a) {
    const V square = hn::Mul(a, a);
    // 2^(-a^2 / 2 log2(e)), the constant in two parts.
    const V scale = hn::Set(d, -0.5f * kLog2E);
    const V scale_rest = hn::Set(d, -0.5f * 1.92596299e-8f);
    const V rounder = hn::Set(d, kExpRounder);
    const V shifted = hn::MulAdd(square, scale, rounder);
    const V r = hn::MulAdd(square, scale_rest, hn::MulSub(square, scale, hn::Sub(shifted, rounder)));
    density = ScaleByPower(Exp2Fraction(r), shifted);
    const V t = hn::Div(hn::Set(d, 1.0f), hn::MulAdd(a, hn::Set(d, 0.3f), hn::Set(d, 1.0f)));
    V p = hn::MulAdd(t, hn::Set(d, 0.03603656388589252f), hn::Set(d, -0.15871461348354488f));
    p = hn::MulAdd(p, t, hn::Set(d, 0.20896616888539482f));
    p = hn::MulAdd(p, t, hn::Set(d, -0.056097199382718926f));
    p = hn::MulAdd(p, t, hn::Set(d, 0.12984404556362883f));
    p = hn::MulAdd(p, t, hn::Set(d, 0.09952289291935955f));
    p = hn::MulAdd(p, t, hn::Set(d, 0.1208169165456971f));
    p = hn::MulAdd(p, t, hn::Set(d, 0.11962516413403848f));
    tail = hn::Mul(density, hn::Mul(t, p));
  }

  // Phi(x), |x| = a.
  HWY_INLINE V Distribution(D d, V x) const {
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0f), tail));
  }
};
struct GeluErf {
  static HWY_INLINE V Of(D d, V x) {
    const NormalTail normal(d, hn::Min(hn::Abs(x), hn::Set(d, kGeluErfLimit)));
    const V y = hn::Mul(x, normal.Distribution(d, x));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -kGeluErfLimit)), y);
  }
};
struct Silu {
  static HWY_INLINE V Of(D d, V x) {
    const V y = hn::Mul(x, Sigmoid(d, Clamp(d, x, kSiluLimit)).value);
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -kSiluLimit)), y);
  }
};

struct Add {
  static HWY_INLINE V Of(D, V a, V b) { return hn::Add(a, b); }
};
struct Sub {
  static HWY_INLINE V Of(D, V a, V b) { return hn::Sub(a, b); }
};
struct Mul {
  static HWY_INLINE V Of(D, V a, V b) { return hn::Mul(a, b); }
};
struct Div {
  static HWY_INLINE V Of(D, V a, V b) { return hn::Div(a, b); }
};
struct ReluGrad {
  static HWY_INLINE V Of(D d, V y, V dy) { return hn::IfThenZeroElse(hn::Le(y, hn::Zero(d)), dy); }
};
struct GeluGrad {
  // s + x s (1 - s) z', z' = 2 sqrt(2 / pi) (1 + 3 * 0.044715 x^2).
  static HWY_INLINE V Of(D d, V x, V dy) {
    const V one = hn::Set(d, 1.0f);
    const V c = Clamp(d, x, kGeluLimit);
    const V square = hn::Mul(c, c);
    const V e = GeluExp(d, c, square);
    const V s = hn::Div(one, hn::Add(one, e));
    const V slope =
        hn::MulAdd(square, hn::Set(d, 3 * kCubic * kTwiceRootTwoOverPi), hn::Set(d, kTwiceRootTwoOverPi));
    // 1 - s is e s.
    const V bend = hn::Mul(hn::Mul(s, s), e);
    const V derivative = hn::MulAdd(hn::Mul(c, slope), bend, s);
    return hn::Mul(dy, KeepNan(x, hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -kGeluLimit)), derivative)));
  }
};
// Both terms come from one exponential: the density is what the tail was scaled by.
struct GeluErfGrad {
  // Phi(x) + x phi(x).
  static HWY_INLINE V Of(D d, V x, V dy) {
    const V limit = hn::Set(d, kGeluErfLimit);
    const NormalTail normal(d, hn::Min(hn::Abs(x), limit));
    const V density = hn::Mul(normal.density, hn::Set(d, 0.39894228040143268f));
    const V derivative = hn::MulAdd(Clamp(d, x, kGeluErfLimit), density, normal.Distribution(d, x));
    return hn::Mul(dy, KeepNan(x, hn::IfThenZeroElse(hn::Lt(x, hn::Neg(limit)), derivative)));
  }
};
// 1 - s comes from the sigmoid itself, since a subtraction near s = 1 would leave no digits.
struct SiluGrad {
  // s (1 + x (1 - s)).
  static HWY_INLINE V Of(D d, V x, V dy) {
    const V c = Clamp(d, x, kSiluLimit);
    const Sigmoid s(d, c);
    const V derivative = hn::Mul(s.value, hn::MulAdd(c, s.complement, hn::Set(d, 1.0f)));
    return hn::Mul(dy, KeepNan(x, hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -kSiluLimit)), derivative)));
  }
};

// result(the struct of a function).
// A function is chosen once per call of a kernel, and what is chosen is a whole loop: the struct's code is
// inlined in it, and nothing is decided per element or block.
template <class Result>
HWY_INLINE auto VisitUnary(UnaryFunction function, const Result& result) {
  switch (function) {
    case UnaryFunction::kNeg:
      return result(Neg());
    case UnaryFunction::kExp:
      return result(Exp());
    case UnaryFunction::kLog:
      return result(Log());
    case UnaryFunction::kSqrt:
      return result(Sqrt());
    case UnaryFunction::kRsqrt:
      return result(Rsqrt());
    case UnaryFunction::kTanh:
      return result(Tanh());
    case UnaryFunction::kSquare:
      return result(Square());
    case UnaryFunction::kRelu:
      return result(Relu());
    case UnaryFunction::kGelu:
      return result(Gelu());
    case UnaryFunction::kGeluErf:
      return result(GeluErf());
    case UnaryFunction::kSilu:
      break;
  }
  return result(Silu());
}

template <class Result>
HWY_INLINE auto VisitBinary(BinaryFunction function, const Result& result) {
  switch (function) {
    case BinaryFunction::kAdd:
      return result(Add());
    case BinaryFunction::kSub:
      return result(Sub());
    case BinaryFunction::kMul:
      return result(Mul());
    case BinaryFunction::kDiv:
      return result(Div());
    case BinaryFunction::kReluGrad:
      return result(ReluGrad());
    case BinaryFunction::kGeluGrad:
      return result(GeluGrad());
    case BinaryFunction::kGeluErfGrad:
      return result(GeluErfGrad());
    case BinaryFunction::kSiluGrad:
      break;
  }
  return result(SiluGrad());
}

// For bf16 the same functions of floats between a widening and a rounding in registers: one
// definition for both types.
template <class S>
UnarySpan<S> SelectUnary(UnaryFunction function) {
  return VisitUnary(function, []<class F>(F) -> UnarySpan<S> { return UnaryLoop<F, S>; });
}

template <class S>
BinarySpan<S> SelectBinary(BinaryFunction function) {
  return VisitBinary(function, []<class F>(F) -> BinarySpan<S> { return BinaryLoop<F, S>; });
}

UnarySpan<float> SelectUnaryF32(UnaryFunction function) { return SelectUnary<float>(function); }
BinarySpan<float> SelectBinaryF32(BinaryFunction function) { return SelectBinary<float>(function); }
UnarySpan<BFloat16> SelectUnaryBF16(UnaryFunction function) { return SelectUnary<BFloat16>(function); }
BinarySpan<BFloat16> SelectBinaryBF16(BinaryFunction function) { return SelectBinary<BFloat16>(function); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(SelectUnaryF32);
HWY_EXPORT(SelectBinaryF32);
HWY_EXPORT(SelectUnaryBF16);
HWY_EXPORT(SelectBinaryBF16);

}  // namespace

UnarySpan<float> FloatSpan(UnaryFunction function) { return HWY_DYNAMIC_DISPATCH(SelectUnaryF32)(function); }
BinarySpan<float> FloatSpan(BinaryFunction function) {
  return HWY_DYNAMIC_DISPATCH(SelectBinaryF32)(function);
}
UnarySpan<BFloat16> BFloat16Span(UnaryFunction function) {
  return HWY_DYNAMIC_DISPATCH(SelectUnaryBF16)(function);
}
BinarySpan<BFloat16> BFloat16Span(BinaryFunction function) {
  return HWY_DYNAMIC_DISPATCH(SelectBinaryBF16)(function);
}

}  // namespace weft
#endif  // HWY_ONCE
