#include "ops/cpu/float_spans.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/float_spans.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, which sets the target that they are compiled for.
#include "hwy/contrib/math/math-inl.h"
#include "ops/cpu/float_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

// gelu(x) = x * sigmoid(2 u), u = sqrt(2 / pi) * (x + 0.044715 x^3). Beyond |x| = 10 the sigmoid is 0 or 1 to
// float.
constexpr float kGeluLimit = 10;
constexpr float kTwiceRootTwoOverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;
// silu(x) = x * sigmoid(x). Below, the result is under 2e-36.
constexpr float kSiluLimit = 87;

struct Neg {
  static HWY_INLINE V Of(D, V x) { return hn::Neg(x); }
};
struct Log {
  static HWY_INLINE V Of(D d, V x) {
    const V zero = hn::Zero(d);
    const V infinity = hn::Inf(d);
    V y = hn::Log(d, x);
    y = hn::IfThenElse(hn::Eq(x, infinity), infinity, y);
    y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
    y = hn::IfThenElse(hn::Lt(x, zero), hn::NaN(d), y);
    return KeepNan(x, y);
  }
};
struct Sqrt {
  static HWY_INLINE V Of(D, V x) { return hn::Sqrt(x); }
};
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
struct Relu {
  static HWY_INLINE V Of(D d, V x) { return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x); }
};
struct Gelu {
  static HWY_INLINE V Of(D d, V x) {
    const V c = Clamp(d, x, kGeluLimit);
    const V scaled = hn::Mul(c, hn::Set(d, kTwiceRootTwoOverPi));
    const V z = hn::Mul(scaled, hn::MulAdd(hn::Mul(c, c), hn::Set(d, kCubic), hn::Set(d, 1.0f)));
    return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -kGeluLimit)), hn::Mul(x, Sigmoid(d, z).value));
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
    const V k = hn::Set(d, kTwiceRootTwoOverPi);
    const V z = hn::Mul(hn::Mul(c, k), hn::MulAdd(square, hn::Set(d, kCubic), one));
    const V slope = hn::Mul(k, hn::MulAdd(square, hn::Set(d, 3 * kCubic), one));
    const Sigmoid s(d, z);
    const V bend = hn::Mul(s.value, s.complement);
    const V derivative = hn::MulAdd(hn::Mul(c, slope), bend, s.value);
    return hn::Mul(dy, KeepNan(x, hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -kGeluLimit)), derivative)));
  }
};
struct SiluGrad {
  // s (1 + x (1 - s)).
  static HWY_INLINE V Of(D d, V x, V dy) {
    const V c = Clamp(d, x, kSiluLimit);
    const Sigmoid s(d, c);
    const V derivative = hn::Mul(s.value, hn::MulAdd(c, s.complement, hn::Set(d, 1.0f)));
    return hn::Mul(dy, KeepNan(x, hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -kSiluLimit)), derivative)));
  }
};

UnarySpan SelectUnary(UnaryFunction function) {
  switch (function) {
    case UnaryFunction::kNeg:
      return UnaryLoop<Neg>;
    case UnaryFunction::kExp:
      return UnaryLoop<Exp>;
    case UnaryFunction::kLog:
      return UnaryLoop<Log>;
    case UnaryFunction::kSqrt:
      return UnaryLoop<Sqrt>;
    case UnaryFunction::kRsqrt:
      return UnaryLoop<Rsqrt>;
    case UnaryFunction::kTanh:
      return UnaryLoop<Tanh>;
    case UnaryFunction::kSquare:
      return UnaryLoop<Square>;
    case UnaryFunction::kRelu:
      return UnaryLoop<Relu>;
    case UnaryFunction::kGelu:
      return UnaryLoop<Gelu>;
    case UnaryFunction::kSilu:
      break;
  }
  return UnaryLoop<Silu>;
}

BinarySpan SelectBinary(BinaryFunction function) {
  switch (function) {
    case BinaryFunction::kAdd:
      return BinaryLoop<Add>;
    case BinaryFunction::kSub:
      return BinaryLoop<Sub>;
    case BinaryFunction::kMul:
      return BinaryLoop<Mul>;
    case BinaryFunction::kDiv:
      return BinaryLoop<Div>;
    case BinaryFunction::kReluGrad:
      return BinaryLoop<ReluGrad>;
    case BinaryFunction::kGeluGrad:
      return BinaryLoop<GeluGrad>;
    case BinaryFunction::kSiluGrad:
      break;
  }
  return BinaryLoop<SiluGrad>;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(SelectUnary);
HWY_EXPORT(SelectBinary);

}  // namespace

UnarySpan FloatSpan(UnaryFunction function) { return HWY_DYNAMIC_DISPATCH(SelectUnary)(function); }
BinarySpan FloatSpan(BinaryFunction function) { return HWY_DYNAMIC_DISPATCH(SelectBinary)(function); }

}  // namespace weft
#endif  // HWY_ONCE
