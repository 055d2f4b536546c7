// Loops over rows of any floating type by vectors of the type that is computed in, compiled once for every
// instruction set level. Include it after highway.h in files that hwy/foreach_target.h compiles again; hence
// the guard, which flips with every level.

#if defined(WEFT_OPS_CPU_SPANS_ROW_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_CPU_SPANS_ROW_LOOPS_INL_H_
#undef WEFT_OPS_CPU_SPANS_ROW_LOOPS_INL_H_
#else
#define WEFT_OPS_CPU_SPANS_ROW_LOOPS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "ops/cpu/spans/compute_type.h"
#include "ops/cpu/spans/half_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

template <class C>
using RowTag = hwy::HWY_NAMESPACE::ScalableTag<C>;
template <class C>
using RowVec = hwy::HWY_NAMESPACE::Vec<RowTag<C>>;

// Vectors in a pack, which is what one vector of storage holds: of halves the even elements and the odd ones.
template <class S>
constexpr int kPackVectors = sizeof(S) == 2 ? 2 : 1;

template <class S>
struct Pack {
  RowVec<ComputeType<S>> v[kPackVectors<S>];
};

template <class S>
HWY_INLINE int64_t PackSize() {
  return kPackVectors<S> * static_cast<int64_t>(hwy::HWY_NAMESPACE::Lanes(RowTag<ComputeType<S>>()));
}

template <class S>
HWY_INLINE Pack<S> LoadPack(const S* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kPackVectors<S> == 1) {
    return {{hn::LoadU(RowTag<S>(), p)}};
  } else {
    const auto words = hn::LoadU(HWY_FULL(uint32_t)(), reinterpret_cast<const uint32_t*>(p));
    return {{HalfLanes<S>::Even(words), HalfLanes<S>::Odd(words)}};
  }
}

template <class S>
HWY_INLINE void StorePack(const Pack<S>& pack, S* p) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (kPackVectors<S> == 1) {
    hn::StoreU(pack.v[0], RowTag<S>(), p);
  } else {
    const auto words = HalfLanes<S>::Join(pack.v[0], pack.v[1]);
    hn::StoreU(words, HWY_FULL(uint32_t)(), reinterpret_cast<uint32_t*>(p));
  }
}

// A number that a caller gives, in all lanes; a nan without bits that a half lacks, see half_lanes-inl.h.
template <class C>
HWY_INLINE RowVec<C> SetPlain(C value) {
  return hwy::HWY_NAMESPACE::Set(RowTag<C>(), value == value ? value : std::numeric_limits<C>::quiet_NaN());
}

// How a loop body reaches its packs: whole ones, or the last one of a row, which is padded with zeros through
// a buffer. "Wide" arrays hold numbers of the compute type in the order of packs: for halves, the even
// elements of each pack and then its odd ones, whole packs of them.
template <class S>
struct WholePack {
  using C = ComputeType<S>;
  using V = RowVec<C>;

  HWY_INLINE Pack<S> Load(const S* p) const { return LoadPack(p); }
  HWY_INLINE void Store(const Pack<S>& pack, S* p) const { StorePack(pack, p); }
  HWY_INLINE Pack<S> LoadWide(const C* p) const {
    namespace hn = hwy::HWY_NAMESPACE;
    Pack<S> pack;
    for (int k = 0; k < kPackVectors<S>; ++k) pack.v[k] = hn::LoadU(RowTag<C>(), p + k * HWY_LANES(C));
    return pack;
  }
  HWY_INLINE void StoreWide(const Pack<S>& pack, C* p) const {
    namespace hn = hwy::HWY_NAMESPACE;
    for (int k = 0; k < kPackVectors<S>; ++k) hn::StoreU(pack.v[k], RowTag<C>(), p + k * HWY_LANES(C));
  }
  // v, the k-th vector of its pack, with `other` in lanes beyond the row.
  HWY_INLINE V Keep(V v, int /*k*/, V /*other*/) const { return v; }
};

template <class S>
struct PartPack {
  using C = ComputeType<S>;
  using V = RowVec<C>;
  static constexpr int64_t kSize = HWY_MAX_BYTES / sizeof(S);

  int64_t count;

  HWY_INLINE Pack<S> Load(const S* p) const {
    HWY_ALIGN S buffer[kSize];
    std::memset(static_cast<void*>(buffer), 0, sizeof(buffer));
    std::memcpy(static_cast<void*>(buffer), p, count * sizeof(S));
    return LoadPack(buffer);
  }
  HWY_INLINE void Store(const Pack<S>& pack, S* p) const {
    HWY_ALIGN S buffer[kSize];
    StorePack(pack, buffer);
    std::memcpy(static_cast<void*>(p), buffer, count * sizeof(S));
  }
  HWY_INLINE Pack<S> LoadWide(const C* p) const {
    if constexpr (kPackVectors<S> == 1) {
      return Load(p);
    } else {
      return WholePack<S>().LoadWide(p);
    }
  }
  HWY_INLINE void StoreWide(const Pack<S>& pack, C* p) const {
    if constexpr (kPackVectors<S> == 1) {
      Store(pack, p);
    } else {
      WholePack<S>().StoreWide(pack, p);
    }
  }
  HWY_INLINE V Keep(V v, int k, V other) const {
    namespace hn = hwy::HWY_NAMESPACE;
    const int64_t kept = kPackVectors<S> == 1 ? count : (count + 1 - k) / 2;
    return hn::IfThenElse(hn::FirstN(RowTag<C>(), kept), v, other);
  }
};

// f(one vector of each pack), vector by vector.
template <class S, class F, class... P>
HWY_INLINE Pack<S> ApplyToPacks(const F& f, const P&... packs) {
  Pack<S> result;
  for (int k = 0; k < kPackVectors<S>; ++k) result.v[k] = f(packs.v[k]...);
  return result;
}

// Brings what lies a row further on into the cache: in the last pass over a row, which computes while memory
// would be idle. Rows mostly follow each other; where they do not, nothing is lost but the instruction.
template <class S>
HWY_INLINE void FetchLine(const S* p) {
  __builtin_prefetch(p);
}

// body(access, i) for every pack of a row.
template <class S, class Body>
HWY_INLINE void ForPacks(int64_t n, const Body& body) {
  const int64_t size = PackSize<S>();
  int64_t i = 0;
  for (; i + size <= n; i += size) body(WholePack<S>(), i);
  if (i < n) body(PartPack<S>{n - i}, i);
}

// y = f(x...), vector by vector; y may be one of the x. With kFetch the x of the next row are fetched.
template <class S, bool kFetch = false, class F, class... X>
HWY_INLINE void MapRow(int64_t n, S* y, const F& f, const X*... x) {
  ForPacks<S>(n, [&](auto access, int64_t i) HWY_ATTR {
    if constexpr (kFetch) (FetchLine(x + i + n), ...);
    access.Store(ApplyToPacks<S>(f, access.Load(x + i)...), y + i);
  });
}

// The sum of body(access, i), a pack, over the packs of a row. Blocks bound what rounding can lose; four sums
// hide latency. Lanes beyond the end count nothing, whatever the body makes of their fill: inf - inf is not
// 0.
template <class S, class Body>
HWY_INLINE double SumPacks(int64_t n, const Body& body) {
  namespace hn = hwy::HWY_NAMESPACE;
  constexpr int64_t kBlock = 4096;
  constexpr int kSums = 4;
  constexpr int kVectors = kPackVectors<S>;
  using C = ComputeType<S>;
  const RowTag<C> d;
  const int64_t size = PackSize<S>();
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    RowVec<C> sums[kSums];
    for (int k = 0; k < kSums; ++k) sums[k] = hn::Zero(d);
    const auto add = [&](auto access, int64_t i, int first) HWY_ATTR {
      const Pack<S> terms = body(access, i);
      for (int k = 0; k < kVectors; ++k) {
        sums[first + k] = hn::Add(sums[first + k], access.Keep(terms.v[k], k, hn::Zero(d)));
      }
    };
    int64_t i = begin;
    for (; i + kSums / kVectors * size <= end; i += kSums / kVectors * size) {
      for (int k = 0; k < kSums; k += kVectors) add(WholePack<S>(), i + k / kVectors * size, k);
    }
    for (; i + size <= end; i += size) add(WholePack<S>(), i, 0);
    if (i < end) add(PartPack<S>{end - i}, i, 0);
    total += hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
  }
  return total;
}

// The sum of f(x...), vector by vector.
template <class S, bool kFetch = false, class F, class... X>
HWY_INLINE double SumRow(int64_t n, const F& f, const X*... x) {
  return SumPacks<S>(n, [&](auto access, int64_t i) HWY_ATTR {
    if constexpr (kFetch) (FetchLine(x + i + n), ...);
    return ApplyToPacks<S>(f, access.Load(x + i)...);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
