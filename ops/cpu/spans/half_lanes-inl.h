// Vectors of halves as pairs of vectors of float, compiled once for every instruction set level. Include it
// after highway.h in files that hwy/foreach_target.h compiles again; hence the guard, which flips with every
// level.

#if defined(WEFT_OPS_CPU_SPANS_HALF_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_SPANS_HALF_LANES_INL_H_
#undef WEFT_OPS_CPU_SPANS_HALF_LANES_INL_H_
#else
#define WEFT_OPS_CPU_SPANS_HALF_LANES_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "runtime/base/float16.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

using HalfFloats = hwy::HWY_NAMESPACE::Vec<HWY_FULL(float)>;
using HalfWords = hwy::HWY_NAMESPACE::Vec<HWY_FULL(uint32_t)>;

// A word of 32 bits holds two neighbouring halves, the even one below. A vector of words is taken apart into
// the floats of the even halves and those of the odd ones, and put together again: a shift and a mask, where
// widening in order would take a permutation for each vector, and narrowing another.
//
// The bits are those of BFloat16 and Float16, subnormals included, for floats whose nans have no bits set
// that a half lacks: halves themselves, and what arithmetic makes of halves and numbers. Such a nan has
// nothing that rounding could carry upward, so it passes as it is; a signalling one may stay one.
template <class H>
struct HalfLanes;

template <>
struct HalfLanes<BFloat16> {
  static HWY_INLINE HalfFloats Even(HalfWords words) {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::BitCast(HWY_FULL(float)(), hn::ShiftLeft<16>(words));
  }

  static HWY_INLINE HalfFloats Odd(HalfWords words) {
    namespace hn = hwy::HWY_NAMESPACE;
    const HWY_FULL(uint32_t) u;
    return hn::BitCast(HWY_FULL(float)(), hn::And(words, hn::Set(u, 0xffff0000u)));
  }

  static HWY_INLINE HalfWords Join(HalfFloats even, HalfFloats odd) {
    namespace hn = hwy::HWY_NAMESPACE;
    const HalfWords upper = hn::Set(HWY_FULL(uint32_t)(), 0xffff0000u);
    return hn::OrAnd(hn::ShiftRight<16>(Rounded(even)), Rounded(odd), upper);
  }

 private:
  // The half, in the upper half of the word; what is below counts no more.
  static HWY_INLINE HalfWords Rounded(HalfFloats x) {
    namespace hn = hwy::HWY_NAMESPACE;
    const HWY_FULL(uint32_t) u;
    const HalfWords bits = hn::BitCast(u, x);
    const HalfWords is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    return hn::Add(hn::Add(bits, hn::Set(u, 0x7fffu)), is_odd);
  }
};

template <>
struct HalfLanes<Float16> {
  static HWY_INLINE HalfFloats Even(HalfWords words) {
    namespace hn = hwy::HWY_NAMESPACE;
    return Widened(hn::And(words, hn::Set(HWY_FULL(uint32_t)(), 0xffffu)));
  }

  static HWY_INLINE HalfFloats Odd(HalfWords words) {
    namespace hn = hwy::HWY_NAMESPACE;
    return Widened(hn::ShiftRight<16>(words));
  }

  static HWY_INLINE HalfWords Join(HalfFloats even, HalfFloats odd) {
    namespace hn = hwy::HWY_NAMESPACE;
    return hn::Or(Rounded(even), hn::ShiftLeft<16>(Rounded(odd)));
  }

 private:
  // Of words below 2^31.
  static HWY_INLINE auto Above(HalfWords a, uint32_t b) {
    namespace hn = hwy::HWY_NAMESPACE;
    const HWY_FULL(int32_t) i;
    return hn::RebindMask(HWY_FULL(uint32_t)(),
                          hn::Gt(hn::BitCast(i, a), hn::Set(i, static_cast<int32_t>(b))));
  }

  // As runtime/base/float16.h has it.
  static HWY_INLINE HalfFloats Widened(HalfWords half) {
    namespace hn = hwy::HWY_NAMESPACE;
    const HWY_FULL(uint32_t) u;
    const HWY_FULL(float) f;
    const HalfWords magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(u, 0x7fffu)));
    const HalfFloats scale = hn::BitCast(f, hn::Set(u, 0x77800000u));
    const HalfWords finite = hn::BitCast(u, hn::Mul(hn::BitCast(f, magnitude), scale));
    const HalfWords special = hn::Or(magnitude, hn::Set(u, 0x7f800000u));
    const HalfWords sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(u, 0x8000u)));
    return hn::BitCast(f,
                       hn::Or(hn::IfThenElse(Above(magnitude, (0x7c00u << 13) - 1), special, finite), sign));
  }

  static HWY_INLINE HalfWords Rounded(HalfFloats x) {
    namespace hn = hwy::HWY_NAMESPACE;
    const HWY_FULL(uint32_t) u;
    const HWY_FULL(float) f;
    const HalfWords bits = hn::BitCast(u, x);
    const HalfWords sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 0x8000u));
    const HalfWords magnitude = hn::And(bits, hn::Set(u, 0x7fffffffu));
    const HalfWords rebased = hn::Sub(magnitude, hn::Set(u, 0x38000000u));
    const HalfWords is_odd = hn::And(hn::ShiftRight<13>(rebased), hn::Set(u, 1));
    HalfWords half = hn::ShiftRight<13>(hn::Add(hn::Add(rebased, is_odd), hn::Set(u, 0xfffu)));
    const HalfWords aligned = hn::BitCast(u, hn::Add(hn::BitCast(f, magnitude), hn::Set(f, 0.5f)));
    const HalfWords small = hn::Sub(aligned, hn::Set(u, 0x3f000000u));
    half = hn::IfThenElse(Above(magnitude, 0x38800000u - 1), half, small);
    half = hn::IfThenElse(Above(magnitude, 0x477ff000u - 1), hn::Set(u, 0x7c00u), half);
    half = hn::IfThenElse(Above(magnitude, 0x7f800000u), hn::Set(u, 0x7e00u), half);
    return hn::Or(half, sign);
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
