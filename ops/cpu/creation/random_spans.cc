#include "ops/cpu/creation/random_spans.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/philox_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/creation/random_spans.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, which sets the target that it is compiled for.
#include "ops/cpu/creation/philox-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = HWY_FULL(float);
using DU = HWY_FULL(uint32_t);
using DU64 = HWY_FULL(uint64_t);
using VU64 = hn::Vec<DU64>;
using DF64 = HWY_FULL(double);
using VF64 = hn::Vec<DF64>;
using DI64 = HWY_FULL(int64_t);

#if HWY_TARGET == HWY_SCALAR

void Words(const RandomKey& key, uint64_t first, uint32_t* words, int64_t n) {
  for (int64_t i = 0; i < n;) {
    const uint64_t element = first + static_cast<uint64_t>(i);
    const PhiloxWords block = RandomWords(key, element / 4);
    for (uint64_t lane = element % 4; lane < 4 && i < n; ++lane, ++i) words[i] = block[lane];
  }
}

#else

constexpr int64_t kMaxBatch = kPhiloxTogether * 4 * HWY_LANES(uint64_t);  // words

// The words of kPhiloxTogether * Lanes blocks from `block` on, in order.
// Interleaving works within blocks of 128 bits, so counters are given to lanes in an order that makes the
// words come out in theirs.
HWY_INLINE void Batch(const PhiloxConstants& stream, VU64 order, uint32_t block, uint32_t* words) {
  const DU64 d;
  const DU u;
  VU64 counters[kPhiloxTogether];
  PhiloxBlocks made[kPhiloxTogether];
  for (int t = 0; t < kPhiloxTogether; ++t) {
    counters[t] = hn::Add(hn::Set(d, block + static_cast<uint32_t>(t * hn::Lanes(d))), order);
  }
  Philox(stream, counters, made);
  for (const PhiloxBlocks& x : made) {
    // Words 0 and 1 of each block, and 2 and 3; then blocks whole, those of even lanes first.
    const auto x01 = hn::OddEven(hn::BitCast(u, hn::ShiftLeft<32>(x.x1)), hn::BitCast(u, x.x0));
    const auto x23 = hn::OddEven(hn::BitCast(u, hn::ShiftLeft<32>(x.x3)), hn::BitCast(u, x.x2));
    const VU64 a = hn::BitCast(d, x01), b = hn::BitCast(d, x23);
    hn::StoreU(hn::BitCast(u, hn::InterleaveLower(d, a, b)), u, words);
    hn::StoreU(hn::BitCast(u, hn::InterleaveUpper(d, a, b)), u, words + hn::Lanes(u));
    words += 2 * hn::Lanes(u);
  }
}

// `num_blocks` whole blocks from `first` on, whose numbers agree in the high word.
void WholeBlocks(const PhiloxConstants& stream, uint32_t first, uint32_t* words, int64_t num_blocks) {
  const DU64 d;
  const int64_t lanes = hn::Lanes(d);
  // Even lanes make the first vector of words, odd ones the second.
  HWY_ALIGN uint64_t order_of[HWY_LANES(uint64_t)];
  for (int64_t i = 0; i < lanes; ++i) order_of[i] = i / 2 + (i % 2) * (lanes / 2);
  const VU64 order = hn::Load(d, order_of);
  const int64_t batch = kPhiloxTogether * lanes;
  int64_t i = 0;
  for (; i + batch <= num_blocks; i += batch) {
    Batch(stream, order, first + static_cast<uint32_t>(i), words + 4 * i);
  }
  if (i == num_blocks) return;
  // The last blocks as a whole batch too, of which some words are dropped: no second way to make them.
  HWY_ALIGN uint32_t rest[kMaxBatch];
  Batch(stream, order, first + static_cast<uint32_t>(i), rest);
  std::memcpy(words + 4 * i, rest, (num_blocks - i) * 4 * sizeof(uint32_t));
}

void Words(const RandomKey& key, uint64_t first, uint32_t* words, int64_t n) {
  const auto part_of_block = [&](uint64_t element, uint32_t* to, int64_t count) {
    const PhiloxWords block = RandomWords(key, element / 4);
    std::copy_n(block.begin() + element % 4, count, to);
  };
  const int64_t head = std::min<int64_t>(n, static_cast<int64_t>((4 - first % 4) % 4));
  if (head > 0) part_of_block(first, words, head);
  const PhiloxStream parts = StreamParts(key);
  int64_t i = head;
  while (n - i >= 4) {
    const uint64_t block = (first + static_cast<uint64_t>(i)) / 4;
    const uint32_t low = static_cast<uint32_t>(block);
    const int64_t until_carry = (int64_t{1} << 32) - low;
    const int64_t num_blocks = std::min((n - i) / 4, until_carry);
    WholeBlocks(PhiloxConstants(parts, static_cast<uint32_t>(block >> 32)), low, words + i, num_blocks);
    i += 4 * num_blocks;
  }
  if (i < n) part_of_block(first + static_cast<uint64_t>(i), words + i, n - i);
}

#endif

// vector(words, i) for whole vectors of 32-bit lanes; then rest(i), the first element of the last part.
template <class Vector>
HWY_INLINE void ForVectors(const uint32_t* words, float* y, int64_t n, const Vector& vector) {
  const DF d;
  const DU u;
  const int64_t lanes = hn::Lanes(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(vector(hn::LoadU(u, words + i)), d, y + i);
  if (i == n) return;
  HWY_ALIGN uint32_t in[HWY_LANES(float)] = {};
  HWY_ALIGN float out[HWY_LANES(float)];
  std::copy(words + i, words + n, in);
  hn::Store(vector(hn::Load(u, in)), d, out);
  std::copy(out, out + (n - i), y + i);
}

void Uniform(const uint32_t* words, float low, float width, float* y, int64_t n) {
  const DF d;
  const HWY_FULL(int32_t) s;
  const auto l = hn::Set(d, low), w = hn::Set(d, width), unit = hn::Set(d, 0x1p-24f);
  ForVectors(words, y, n, [=](auto word) HWY_ATTR {
    const auto value = hn::Mul(hn::ConvertTo(d, hn::BitCast(s, hn::ShiftRight<8>(word))), unit);
    return hn::Add(l, hn::Mul(w, value));
  });
}

// A product and a sum, not one multiply-add, here and in all that follows: levels without it would give other
// bits, and a parameter's initial values are the same on every machine.
template <int n>
HWY_INLINE VF64 Polynomial(const double (&coefficients)[n], VF64 x) {
  const DF64 d;
  VF64 value = hn::Set(d, coefficients[0]);
  for (int i = 1; i < n; ++i) value = hn::Add(hn::Mul(value, x), hn::Set(d, coefficients[i]));
  return value;
}

// Of normal positive numbers, as philox.cc does it.
HWY_INLINE VF64 Log(VF64 x) {
  const DF64 d;
  const DU64 u;
  const DI64 s64;
  const VU64 bits = hn::BitCast(u, x);
  const VU64 above = hn::Sub(bits, hn::Set(u, LogParts::kSqrtHalfBits));
  const auto exponent = hn::ShiftRight<52>(hn::BitCast(s64, above));
  const VF64 m = hn::BitCast(d, hn::Sub(bits, hn::BitCast(u, hn::ShiftLeft<52>(exponent))));
  const VF64 one = hn::Set(d, 1.0);
  const VF64 s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const VF64 z = hn::Mul(s, s);
  const VF64 series = Polynomial(LogParts::kSeries, z);
  const VF64 mantissa = hn::Add(s, hn::Mul(s, hn::Mul(z, series)));
  const VF64 scaled = hn::Mul(hn::ConvertTo(d, exponent), hn::Set(d, LogParts::kLogTwo));
  return hn::Add(scaled, hn::Mul(hn::Set(d, 2.0), mantissa));
}

// The inverse of the normal distribution by rational functions: Wichura, "Algorithm AS 241",
// 1988. One word makes one number, unlike Box and Muller's pairs or a rejection, so an element's
// number depends on its index alone.
HWY_INLINE VF64 CentralQuantile(VF64 q) {
  using Parts = NormalQuantileParts;
  const VF64 r = hn::Sub(hn::Set(DF64(), Parts::kCentreShift), hn::Mul(q, q));
  return hn::Div(hn::Mul(q, Polynomial(Parts::kCentreNum, r)), Polynomial(Parts::kCentreDen, r));
}

HWY_INLINE VF64 TailQuantile(VF64 p) {
  using Parts = NormalQuantileParts;
  const DF64 d;
  const auto low = hn::Lt(p, hn::Set(d, 0.5));
  const VF64 nearer = hn::IfThenElse(low, p, hn::Sub(hn::Set(d, 1.0), p));
  const VF64 r = hn::Sub(hn::Sqrt(hn::Neg(Log(nearer))), hn::Set(d, Parts::kTailShift));
  const VF64 tail = hn::Div(Polynomial(Parts::kTailNum, r), Polynomial(Parts::kTailDen, r));
  return hn::IfThenElse(low, hn::Neg(tail), tail);
}

constexpr int64_t kNormalBlock = 512;

// y[i] = the quantile of words[i] for n <= kNormalBlock; `words` may be read, `y` written up to a vector
// beyond. Three of twenty elements lie in a tail, and most vectors hold one: those are set aside, and done
// densely.
// In double, since a float near 1 has no room for the words of the upper tail.
void Quantiles(const uint32_t* words, float* y, int64_t n) {
  const DF64 d;
  const hn::Rebind<uint32_t, DF64> du32;
  const hn::Rebind<int32_t, DF64> ds32;
  const hn::Rebind<float, DF64> df;
  const int64_t lanes = hn::Lanes(d);
  constexpr int64_t kSpace = kNormalBlock + HWY_LANES(double);
  HWY_ALIGN double probabilities[kSpace];
  HWY_ALIGN double tails[HWY_LANES(double)];
  HWY_ALIGN float values[HWY_LANES(double)];
  int32_t places[kSpace];
  int64_t num_tails = 0;
  const VF64 centre = hn::Set(d, NormalQuantileParts::kCentre);
  for (int64_t i = 0; i < n; i += lanes) {
    // A word as a double, by way of a signed one: exact.
    const auto word = hn::Xor(hn::LoadU(du32, words + i), hn::Set(du32, 0x80000000u));
    const VF64 number = hn::Add(hn::PromoteTo(d, hn::BitCast(ds32, word)), hn::Set(d, 0x1p31));
    const VF64 p = hn::Mul(hn::Add(number, hn::Set(d, 0.5)), hn::Set(d, 0x1p-32));
    const VF64 q = hn::Sub(p, hn::Set(d, 0.5));
    hn::Store(p, d, probabilities + i);
    hn::StoreU(hn::DemoteTo(df, CentralQuantile(q)), df, y + i);
    uint8_t is_tail[8];
    hn::StoreMaskBits(d, hn::Gt(hn::Abs(q), centre), is_tail);
    // Without branches, which would be mispredicted. (Highway 1.0's Compress copies its tables to the stack.)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      places[num_tails] = static_cast<int32_t>(i + lane);
      num_tails += is_tail[0] >> lane & 1;
    }
  }
  for (int64_t i = 0; i < num_tails; i += lanes) {
    const int64_t count = std::min(lanes, num_tails - i);
    for (int64_t j = 0; j < lanes; ++j) tails[j] = probabilities[places[i + std::min(j, count - 1)]];
    hn::Store(hn::DemoteTo(df, TailQuantile(hn::Load(d, tails))), df, values);
    for (int64_t j = 0; j < count; ++j) y[places[i + j]] = values[j];
  }
}

void Normal(const uint32_t* words, float mean, float stddev, float* y, int64_t n) {
  const DF d;
  const int64_t lanes = hn::Lanes(d);
  constexpr int64_t kSpace = kNormalBlock + HWY_LANES(float);
  HWY_ALIGN uint32_t in[kSpace] = {};
  HWY_ALIGN float out[kSpace];
  for (int64_t begin = 0; begin < n; begin += kNormalBlock) {
    const int64_t count = std::min(kNormalBlock, n - begin);
    std::copy_n(words + begin, count, in);
    Quantiles(in, out, count);
    for (int64_t i = 0; i < count; i += lanes) {
      const auto scaled = hn::Mul(hn::Set(d, stddev), hn::Load(d, out + i));
      hn::Store(hn::Add(hn::Set(d, mean), scaled), d, out + i);
    }
    std::copy_n(out, count, y + begin);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(Words);
HWY_EXPORT(Uniform);
HWY_EXPORT(Normal);

}  // namespace

void RandomWordSpan(const RandomKey& key, uint64_t first, uint32_t* words, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Words)(key, first, words, n);
}
void UniformSpan(const uint32_t* words, float low, float width, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Uniform)(words, low, width, y, n);
}
void NormalSpan(const uint32_t* words, float mean, float stddev, float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(Normal)(words, mean, stddev, y, n);
}

}  // namespace weft
#endif  // HWY_ONCE
