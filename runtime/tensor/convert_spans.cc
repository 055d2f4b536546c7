#include "runtime/tensor/convert_spans.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/tensor/convert_spans.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = HWY_FULL(float);
using DU = HWY_FULL(uint32_t);
using DI = HWY_FULL(int32_t);
using DH = hn::Rebind<uint16_t, DU>;  // as many halves as there are floats
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

static_assert(sizeof(BFloat16) == sizeof(uint16_t) && sizeof(Float16) == sizeof(uint16_t));

HWY_INLINE VU Select(hn::Mask<DI> mask, VU yes, VU no) {
  const DI i;
  return hn::BitCast(DU(), hn::IfThenElse(mask, hn::BitCast(i, yes), hn::BitCast(i, no)));
}

// a > b, of words below 2^31.
HWY_INLINE hn::Mask<DI> Above(VU a, uint32_t b) {
  const DI i;
  return hn::Gt(hn::BitCast(i, a), hn::Set(i, static_cast<int32_t>(b)));
}

// As BFloat16 and Float16 do it, a word a lane: see runtime/base/float16.h.
struct OfBFloat16 {
  static HWY_INLINE VU Widen(VU half) { return hn::ShiftLeft<16>(half); }

  static HWY_INLINE VU Round(VU bits) {
    const DU u;
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const VU rounded = hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fffu)));
    const VU quiet = hn::Or(bits, hn::Set(u, 0x400000u));
    const auto is_nan = Above(hn::And(bits, hn::Set(u, 0x7fffffffu)), 0x7f800000u);
    return hn::ShiftRight<16>(Select(is_nan, quiet, rounded));
  }
};

struct OfFloat16 {
  static HWY_INLINE VU Widen(VU half) {
    const DU u;
    const DF f;
    const VU magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(u, 0x7fffu)));
    const VF scale = hn::BitCast(f, hn::Set(u, 0x77800000u));
    const VU finite = hn::BitCast(u, hn::Mul(hn::BitCast(f, magnitude), scale));
    const VU special = hn::Or(magnitude, hn::Set(u, 0x7f800000u));
    const VU sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(u, 0x8000u)));
    return hn::Or(Select(Above(magnitude, 0x7c00u * 8192 - 1), special, finite), sign);
  }

  static HWY_INLINE VU Round(VU bits) {
    const DU u;
    const DF f;
    const VU sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 0x8000u));
    const VU magnitude = hn::And(bits, hn::Set(u, 0x7fffffffu));
    const VU rebased = hn::Sub(magnitude, hn::Set(u, 0x38000000u));
    const VU odd = hn::And(hn::ShiftRight<13>(rebased), hn::Set(u, 1));
    VU half = hn::ShiftRight<13>(hn::Add(hn::Add(rebased, odd), hn::Set(u, 0xfffu)));
    const VU aligned = hn::BitCast(u, hn::Add(hn::BitCast(f, magnitude), hn::Set(f, 0.5f)));
    const VU small = hn::Sub(aligned, hn::Set(u, 0x3f000000u));
    half = Select(Above(magnitude, 0x38800000u - 1), half, small);
    half = Select(Above(magnitude, 0x477ff000u - 1), hn::Set(u, 0x7c00u), half);
    half = Select(Above(magnitude, 0x7f800000u), hn::Set(u, 0x7e00u), half);
    return hn::Or(half, sign);
  }
};

template <class Format>
HWY_INLINE void WidenVector(const uint16_t* from, float* to) {
  const VU half = hn::PromoteTo(DU(), hn::LoadU(DH(), from));
  hn::StoreU(hn::BitCast(DF(), Format::Widen(half)), DF(), to);
}

template <class Format>
HWY_INLINE void RoundVector(const float* from, uint16_t* to) {
  const VU bits = hn::BitCast(DU(), hn::LoadU(DF(), from));
  hn::StoreU(hn::TruncateTo(DH(), Format::Round(bits)), DH(), to);
}

// vector(from, to) for whole vectors, the last one by way of padded buffers.
template <class From, class To, class Vector>
HWY_INLINE void ForVectors(const From* from, To* to, int64_t n, const Vector& vector) {
  const int64_t lanes = hn::Lanes(DF());
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) vector(from + i, to + i);
  if (i == n) return;
  From in[HWY_LANES(float)] = {};
  To out[HWY_LANES(float)];
  std::memcpy(in, from + i, (n - i) * sizeof(From));
  vector(in, out);
  std::memcpy(to + i, out, (n - i) * sizeof(To));
}

template <class Format>
void Widen(const uint16_t* from, float* to, int64_t n) {
  ForVectors(from, to, n, [](const uint16_t* a, float* b) HWY_ATTR { WidenVector<Format>(a, b); });
}

template <class Format>
void Round(const float* from, uint16_t* to, int64_t n) {
  ForVectors(from, to, n, [](const float* a, uint16_t* b) HWY_ATTR { RoundVector<Format>(a, b); });
}

void WidenBFloat16(const uint16_t* from, float* to, int64_t n) { Widen<OfBFloat16>(from, to, n); }
void WidenFloat16(const uint16_t* from, float* to, int64_t n) { Widen<OfFloat16>(from, to, n); }
void RoundBFloat16(const float* from, uint16_t* to, int64_t n) { Round<OfBFloat16>(from, to, n); }
void RoundFloat16(const float* from, uint16_t* to, int64_t n) { Round<OfFloat16>(from, to, n); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(WidenBFloat16);
HWY_EXPORT(WidenFloat16);
HWY_EXPORT(RoundBFloat16);
HWY_EXPORT(RoundFloat16);

}  // namespace

void ConvertHalves(const BFloat16* from, float* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(WidenBFloat16)(reinterpret_cast<const uint16_t*>(from), to, n);
}
void ConvertHalves(const Float16* from, float* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(WidenFloat16)(reinterpret_cast<const uint16_t*>(from), to, n);
}
void ConvertHalves(const float* from, BFloat16* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(RoundBFloat16)(from, reinterpret_cast<uint16_t*>(to), n);
}
void ConvertHalves(const float* from, Float16* to, int64_t n) {
  HWY_DYNAMIC_DISPATCH(RoundFloat16)(from, reinterpret_cast<uint16_t*>(to), n);
}

}  // namespace weft
#endif  // HWY_ONCE
