// Philox by vectors, compiled once for every instruction set level. Include it after highway.h in files that
// hwy/foreach_target.h compiles again; hence the guard, which flips with every level.

#if defined(WEFT_OPS_CPU_CREATION_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_CREATION_PHILOX_INL_H_
#undef WEFT_OPS_CPU_CREATION_PHILOX_INL_H_
#else
#define WEFT_OPS_CPU_CREATION_PHILOX_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"
#include "runtime/base/philox_parts.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

// The constants of a stream, made for the counters {low, high, step, stream} with one `high`.
struct PhiloxConstants {
  uint64_t keys[kPhiloxRounds][2];  // of 64 bits, so that instructions broadcast them as they read them
  // Of the first two rounds, what does not depend on the counter's low word.
  uint64_t round1_2;  // xors with the high half of the product of word 0
  uint64_t round2_0;  // with that of the product of word 2
  uint64_t round2_2;  // with word 3 after the first round
  uint64_t round3_2;  // with the high half of the product of word 0

  PhiloxConstants(const PhiloxStream& parts, uint32_t high) {
    uint32_t k0 = parts.key[0], k1 = parts.key[1];
    for (auto& key : keys) {
      key[0] = k0, key[1] = k1;
      k0 += kPhiloxKeySteps[0], k1 += kPhiloxKeySteps[1];
    }
    const uint64_t product1 = uint64_t{kPhiloxMultipliers[1]} * parts.step;
    const uint32_t x0 = static_cast<uint32_t>(product1 >> 32) ^ high ^ parts.key[0];
    const uint32_t x1 = static_cast<uint32_t>(product1);
    round1_2 = parts.stream ^ keys[0][1];
    const uint64_t product0 = uint64_t{kPhiloxMultipliers[0]} * x0;
    round2_0 = x1 ^ keys[1][0];
    round2_2 = static_cast<uint32_t>(product0 >> 32) ^ keys[1][1];
    round3_2 = static_cast<uint32_t>(product0) ^ keys[2][1];
  }
};

#if HWY_TARGET != HWY_SCALAR

using PhiloxTag = HWY_FULL(uint64_t);
using PhiloxVec = hwy::HWY_NAMESPACE::Vec<PhiloxTag>;

// The product of the low words, 64 bits a lane.
HWY_INLINE PhiloxVec PhiloxProduct(PhiloxVec x, PhiloxVec multiplier) {
  namespace hn = hwy::HWY_NAMESPACE;
  const HWY_FULL(uint32_t) d;
  return hn::MulEven(hn::BitCast(d, x), hn::BitCast(d, multiplier));
}

// Words of blocks, a block a 64-bit lane; only the low half of a lane counts: what a step leaves in the high
// half, the next one ignores.
struct PhiloxBlocks {
  PhiloxVec x0, x1, x2, x3;
};

// Of kPhiloxTogether counters a lane: the rounds of one are a chain, whose latency the others hide.
constexpr int kPhiloxTogether = 2;

HWY_INLINE void Philox(const PhiloxConstants& stream, const PhiloxVec (&counter_low)[kPhiloxTogether],
                       PhiloxBlocks (&words)[kPhiloxTogether]) {
  namespace hn = hwy::HWY_NAMESPACE;
  const PhiloxTag d;
  const PhiloxVec m0 = hn::Set(d, kPhiloxMultipliers[0]), m1 = hn::Set(d, kPhiloxMultipliers[1]);
  for (int t = 0; t < kPhiloxTogether; ++t) {
    // The first two rounds, less what is the same for all counters. Word 2 after the second is the high half
    // of a constant's product, xor the first round's word 3; word 3 is that product's low half, from here on
    // in round3_2.
    const PhiloxVec first = PhiloxProduct(counter_low[t], m0);
    const PhiloxVec x2 = hn::Xor(hn::ShiftRight<32>(first), hn::Set(d, stream.round1_2));
    const PhiloxVec second = PhiloxProduct(x2, m1);
    words[t].x0 = hn::Xor(hn::ShiftRight<32>(second), hn::Set(d, stream.round2_0));
    words[t].x1 = second;
    words[t].x2 = hn::Xor(first, hn::Set(d, stream.round2_2));
  }
  for (int t = 0; t < kPhiloxTogether; ++t) {
    PhiloxBlocks& x = words[t];
    const PhiloxVec product0 = PhiloxProduct(x.x0, m0), product1 = PhiloxProduct(x.x2, m1);
    x.x0 = hn::Xor3(hn::ShiftRight<32>(product1), x.x1, hn::Set(d, stream.keys[2][0]));
    x.x2 = hn::Xor(hn::ShiftRight<32>(product0), hn::Set(d, stream.round3_2));
    x.x1 = product1, x.x3 = product0;
  }
  for (int round = 3; round < kPhiloxRounds; ++round) {
    const PhiloxVec key0 = hn::Set(d, stream.keys[round][0]), key1 = hn::Set(d, stream.keys[round][1]);
    for (int t = 0; t < kPhiloxTogether; ++t) {
      PhiloxBlocks& x = words[t];
      const PhiloxVec product0 = PhiloxProduct(x.x0, m0), product1 = PhiloxProduct(x.x2, m1);
      x.x0 = hn::Xor3(hn::ShiftRight<32>(product1), x.x1, key0);
      x.x2 = hn::Xor3(hn::ShiftRight<32>(product0), x.x3, key1);
      x.x1 = product1, x.x3 = product0;
    }
  }
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
