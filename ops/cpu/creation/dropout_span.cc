#include "ops/cpu/creation/dropout_span.h"

#include <algorithm>

#include "ops/cpu/creation/random_spans.h"
#include "runtime/base/philox_parts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/creation/dropout_span.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h, which sets the target that they are compiled for.
#include "ops/cpu/creation/philox-inl.h"
#include "ops/cpu/spans/row_loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// What does not change along a span.
struct Rate {
  uint32_t threshold;
  float scale;
};

// Short stretches, an element at a time.
template <class S>
void DropSome(const RandomKey& key, uint64_t first, const S* x, Rate rate, S* y, int64_t n) {
  constexpr int64_t kWords = 64;
  uint32_t words[kWords];
  for (int64_t begin = 0; begin < n; begin += kWords) {
    const int64_t end = std::min(n, begin + kWords);
    RandomWordSpan(key, first + static_cast<uint64_t>(begin), words, end - begin);
    for (int64_t i = begin; i < end; ++i) {
      const bool keep = (words[i - begin] >> 8) >= rate.threshold;
      y[i] = keep ? S(static_cast<float>(x[i]) * rate.scale) : S(0);
    }
  }
}

#if HWY_TARGET == HWY_SCALAR

template <class S>
void Drop(const RandomKey& key, uint64_t first, const S* x, Rate rate, S* y, int64_t n) {
  DropSome(key, first, x, rate, y, n);
}

#else

using VU = hn::Vec<HWY_FULL(uint32_t)>;
using VF = RowVec<float>;

// The comparison is of integers: the 24 bits are the uniform number exactly, so no conversion is needed, and
// they fit a signed lane, which is what SSE and AVX2 compare. A dropped inf or nan becomes 0 and not nan,
// since it is replaced and not multiplied.
HWY_INLINE VF DropVector(VU word, VF value, Rate rate) {
  const RowTag<float> d;
  const HWY_FULL(int32_t) s;
  const auto limit = hn::Set(s, static_cast<int32_t>(rate.threshold));
  const auto dropped = hn::RebindMask(d, hn::Lt(hn::BitCast(s, hn::ShiftRight<8>(word)), limit));
  return hn::IfThenZeroElse(dropped, hn::Mul(value, hn::Set(d, rate.scale)));
}

// The low words of the lanes of a and b, alternating.
HWY_INLINE VU Alternate(PhiloxVec a, PhiloxVec b) {
  const HWY_FULL(uint32_t) u;
  return hn::OddEven(hn::BitCast(u, hn::ShiftLeft<32>(b)), hn::BitCast(u, a));
}

// Elements of as many blocks as a vector has counters, a block a lane; blocks of even lanes are the first.
HWY_INLINE void DropBlocks(const PhiloxBlocks& words, const float* x, Rate rate, float* y) {
  const PhiloxTag d;
  const RowTag<float> f;
  const HWY_FULL(uint32_t) u;
  const int64_t lanes = hn::Lanes(f);
  const PhiloxVec a = hn::BitCast(d, Alternate(words.x0, words.x1));
  const PhiloxVec b = hn::BitCast(d, Alternate(words.x2, words.x3));
  const VU lower = hn::BitCast(u, hn::InterleaveLower(d, a, b));
  const VU upper = hn::BitCast(u, hn::InterleaveUpper(d, a, b));
  hn::StoreU(DropVector(lower, hn::LoadU(f, x), rate), f, y);
  hn::StoreU(DropVector(upper, hn::LoadU(f, x + lanes), rate), f, y + lanes);
}

// The same with blocks in the order of lanes: the even elements of a pack take words 0 and 2, the odd ones 1
// and 3.
HWY_INLINE void DropBlocks(const PhiloxBlocks& words, const BFloat16* x, Rate rate, BFloat16* y) {
  const Pack<BFloat16> values = LoadPack(x);
  StorePack<BFloat16>({{DropVector(Alternate(words.x0, words.x2), values.v[0], rate),
                        DropVector(Alternate(words.x1, words.x3), values.v[1], rate)}},
                      y);
}

// The block of each lane, of those that DropBlocks takes.
// The counters are permuted instead of the words: once per span, where the words of each batch would need it
// anew. For bf16 nothing is, since a pack keeps even and odd elements apart anyhow.
template <class S>
PhiloxVec BlockOfLanes() {
  const PhiloxTag d;
  const int64_t lanes = hn::Lanes(d);
  HWY_ALIGN uint64_t order[HWY_LANES(uint64_t)];
  for (int64_t i = 0; i < lanes; ++i) order[i] = sizeof(S) == 2 ? i : i / 2 + (i % 2) * (lanes / 2);
  return hn::Load(d, order);
}

// Whole batches from block `first` on, whose numbers agree in the high word; returns how many elements.
template <class S>
int64_t DropBatches(const PhiloxConstants& constants, uint32_t first, const S* x, Rate rate, S* y,
                    int64_t num_blocks) {
  const PhiloxTag d;
  const int64_t lanes = hn::Lanes(d);
  const PhiloxVec order = BlockOfLanes<S>();
  int64_t block = 0;
  for (; block + kPhiloxTogether * lanes <= num_blocks; block += kPhiloxTogether * lanes) {
    PhiloxVec counters[kPhiloxTogether];
    PhiloxBlocks words[kPhiloxTogether];
    for (int t = 0; t < kPhiloxTogether; ++t) {
      counters[t] = hn::Add(hn::Set(d, first + static_cast<uint32_t>(block + t * lanes)), order);
    }
    Philox(constants, counters, words);
    for (int t = 0; t < kPhiloxTogether; ++t) {
      const int64_t i = 4 * (block + t * lanes);
      DropBlocks(words[t], x + i, rate, y + i);
    }
  }
  return 4 * block;
}

template <class S>
void Drop(const RandomKey& key, uint64_t first, const S* x, Rate rate, S* y, int64_t n) {
  const auto some = [&](int64_t i, int64_t count) {
    DropSome(key, first + static_cast<uint64_t>(i), x + i, rate, y + i, count);
  };
  // A block of Philox makes four words. Up to the first block's border and from the last whole batch on,
  // elements go one by one; a span may begin at any element of the whole.
  int64_t i = std::min<int64_t>(n, static_cast<int64_t>((4 - first % 4) % 4));
  some(0, i);
  const PhiloxStream parts = StreamParts(key);
  while (n - i >= 4) {
    const uint64_t block = (first + static_cast<uint64_t>(i)) / 4;
    const uint32_t low = static_cast<uint32_t>(block);
    // The constants of the first rounds hold the counter's high word, so a batch may not run
    // across a carry into it.
    const int64_t num_blocks = std::min((n - i) / 4, (int64_t{1} << 32) - low);
    const PhiloxConstants constants(parts, static_cast<uint32_t>(block >> 32));
    const int64_t done = DropBatches(constants, low, x + i, rate, y + i, num_blocks);
    some(i + done, 4 * num_blocks - done);
    i += 4 * num_blocks;
  }
  some(i, n - i);
}

#endif

void DropF32(const RandomKey& key, uint64_t first, const float* x, uint32_t threshold, float scale, float* y,
             int64_t n) {
  Drop(key, first, x, {threshold, scale}, y, n);
}
void DropBF16(const RandomKey& key, uint64_t first, const BFloat16* x, uint32_t threshold, float scale,
              BFloat16* y, int64_t n) {
  Drop(key, first, x, {threshold, scale}, y, n);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(DropF32);
HWY_EXPORT(DropBF16);

}  // namespace

void DropoutSpan(const RandomKey& key, uint64_t first, const float* x, uint32_t threshold, float scale,
                 float* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(DropF32)(key, first, x, threshold, scale, y, n);
}
void DropoutSpan(const RandomKey& key, uint64_t first, const BFloat16* x, uint32_t threshold, float scale,
                 BFloat16* y, int64_t n) {
  HWY_DYNAMIC_DISPATCH(DropBF16)(key, first, x, threshold, scale, y, n);
}

}  // namespace weft
#endif  // HWY_ONCE
