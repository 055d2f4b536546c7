// exp and 2^x of vectors of float, compiled once for every instruction set level. Include it after highway.h
// in files that hwy/foreach_target.h compiles again; hence the guard, which flips with every level.

#if defined(WEFT_OPS_CPU_SPANS_FLOAT_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_SPANS_FLOAT_EXP_INL_H_
#undef WEFT_OPS_CPU_SPANS_FLOAT_EXP_INL_H_
#else
#define WEFT_OPS_CPU_SPANS_FLOAT_EXP_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

// A vector of float, and 1.5 * 2^23: adding it rounds a small number to an integer, which then stands in the
// low bits.
using ExpTag = hwy::HWY_NAMESPACE::ScalableTag<float>;
using ExpVec = hwy::HWY_NAMESPACE::Vec<ExpTag>;
constexpr float kExpRounder = 12582912.0f;

// p * 2^n for a normal result, n in the low bits of `shifted`: an integer addition to the exponent, since
// multiplications are what there are too few units for.
HWY_INLINE ExpVec ScaleByPower(ExpVec p, ExpVec shifted) {
  namespace hn = hwy::HWY_NAMESPACE;
  const ExpTag d;
  const hn::RebindToSigned<ExpTag> bits;
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(bits, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(bits, p), exponent));
}

// 2^r for |r| <= 1/2, of relative error 2e-7: of the polynomials of degree 5 that are 1 at 0, the minimax
// one. So 2^0 is 1, and a softmax's largest term.
HWY_INLINE ExpVec Exp2Fraction(ExpVec r) {
  namespace hn = hwy::HWY_NAMESPACE;
  const ExpTag d;
  ExpVec p = hn::MulAdd(r, hn::Set(d, 1.3264727123606487e-3f), hn::Set(d, 9.671512644820513e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.5507337434973776e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4022242085262274e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.931469775989922e-1f));
  return hn::MulAdd(p, r, hn::Set(d, 1.0f));
}

// 2^t for |t| <= 126, of relative error 2e-7.
HWY_INLINE ExpVec Exp2Bounded(ExpVec t) {
  namespace hn = hwy::HWY_NAMESPACE;
  const ExpTag d;
  const ExpVec shifted = hn::Add(t, hn::Set(d, kExpRounder));
  return ScaleByPower(Exp2Fraction(hn::Sub(t, hn::Sub(shifted, hn::Set(d, kExpRounder)))), shifted);
}

// e^x for |x| <= 87, of relative error 4e-7. Log 2 in two parts, the first short enough that its product with
// an integer is exact.
HWY_INLINE ExpVec ExpBounded(ExpVec x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const ExpTag d;
  const ExpVec shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), hn::Set(d, kExpRounder));
  const ExpVec n = hn::Sub(shifted, hn::Set(d, kExpRounder));
  ExpVec r = hn::MulAdd(n, hn::Set(d, -0.693359375f), x);
  r = hn::MulAdd(n, hn::Set(d, 2.12194440e-4f), r);
  ExpVec p = hn::MulAdd(r, hn::Set(d, 8.290314669370177e-3f), hn::Set(d, 4.189792931919819e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6667636195538474e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.999914953047241e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 9.999997071892401e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return ScaleByPower(p, shifted);
}

// The same with log 2 as one number and a polynomial of degree 4, the minimax one that is 1 at 0: of relative
// error 3e-6 + 1.4e-8 |x|, 8e-6 at worst without fused multiply-adds. For halves, whose spacing is a hundred
// times as wide.
HWY_INLINE ExpVec ExpNear(ExpVec x) {
  namespace hn = hwy::HWY_NAMESPACE;
  const ExpTag d;
  const ExpVec scale = hn::Set(d, 1.44269504088896341f);
  const ExpVec shifted = hn::MulAdd(x, scale, hn::Set(d, kExpRounder));
  const ExpVec r = hn::MulSub(x, scale, hn::Sub(shifted, hn::Set(d, kExpRounder)));
  ExpVec p = hn::MulAdd(r, hn::Set(d, 9.582862066990131e-3f), hn::Set(d, 5.59064632601685e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4024098687062762e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.931241890453328e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return ScaleByPower(p, shifted);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
