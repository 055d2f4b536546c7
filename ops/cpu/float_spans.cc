#include "ops/cpu/float_spans.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/float_spans.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, which sets the target that it is compiled for.
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = HWY_FULL(float);
using V = hn::Vec<D>;

// sigmoid(z) and 1 - sigmoid(z), each to full relative accuracy: neither (1 + tanh) / 2 nor a subtraction
// cancels. For z within [-87, 87], where e^z and 1 + e^z are normal numbers.
struct Sigmoid {
  V value, complement;

  HWY_INLINE Sigmoid(D d, V z) {
    const V one = hn::Set(d, 1.0f);
    const V e = hn::Exp(d, hn::Neg(z));
    value = hn::Div(one, hn::Add(one, e));
    complement = hn::Mul(e, value);
  }
};

HWY_INLINE V Clamp(D d, V x, float limit) {
  return hn::Max(hn::Min(x, hn::Set(d, limit)), hn::Set(d, -limit));
}

// By IsNaN: Highway 1.0's Ne is false for NaN on x86.
HWY_INLINE V KeepNan(V x, V y) { return hn::IfThenElse(hn::IsNaN(x), x, y); }

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
struct Exp {
  static HWY_INLINE V Of(D d, V x) {
    // Highway's is defined up to 104 and takes NaN to 0; beyond 89 the result is inf anyhow.
    return KeepNan(x, hn::Exp(d, hn::Max(hn::Min(x, hn::Set(d, 100.0f)), hn::Set(d, -110.0f))));
  }
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

// The tail goes through whole vectors too, so that its elements get the same bits as any others.
template <class F>
void Unary(const float* x, float* y, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(F::Of(d, hn::LoadU(d, x + i)), d, y + i);
  if (i == n) return;
  HWY_ALIGN float tail[HWY_LANES(float)] = {};
  std::copy(x + i, x + n, tail);
  hn::Store(F::Of(d, hn::Load(d, tail)), d, tail);
  std::copy(tail, tail + (n - i), y + i);
}

template <class F>
void Binary(const float* a, const float* b, float* y, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(F::Of(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, y + i);
  if (i == n) return;
  HWY_ALIGN float tail_a[HWY_LANES(float)] = {};
  HWY_ALIGN float tail_b[HWY_LANES(float)] = {};
  std::copy(a + i, a + n, tail_a);
  std::copy(b + i, b + n, tail_b);
  hn::Store(F::Of(d, hn::Load(d, tail_a), hn::Load(d, tail_b)), d, tail_a);
  std::copy(tail_a, tail_a + (n - i), y + i);
}

UnarySpan SelectUnary(UnaryFunction function) {
  switch (function) {
    case UnaryFunction::kNeg:
      return Unary<Neg>;
    case UnaryFunction::kExp:
      return Unary<Exp>;
    case UnaryFunction::kLog:
      return Unary<Log>;
    case UnaryFunction::kSqrt:
      return Unary<Sqrt>;
    case UnaryFunction::kRsqrt:
      return Unary<Rsqrt>;
    case UnaryFunction::kTanh:
      return Unary<Tanh>;
    case UnaryFunction::kSquare:
      return Unary<Square>;
    case UnaryFunction::kRelu:
      return Unary<Relu>;
    case UnaryFunction::kGelu:
      return Unary<Gelu>;
    case UnaryFunction::kSilu:
      break;
  }
  return Unary<Silu>;
}

BinarySpan SelectBinary(BinaryFunction function) {
  switch (function) {
    case BinaryFunction::kAdd:
      return Binary<Add>;
    case BinaryFunction::kSub:
      return Binary<Sub>;
    case BinaryFunction::kMul:
      return Binary<Mul>;
    case BinaryFunction::kDiv:
      return Binary<Div>;
    case BinaryFunction::kReluGrad:
      return Binary<ReluGrad>;
    case BinaryFunction::kGeluGrad:
      return Binary<GeluGrad>;
    case BinaryFunction::kSiluGrad:
      break;
  }
  return Binary<SiluGrad>;
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
