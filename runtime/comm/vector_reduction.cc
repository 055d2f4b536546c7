#include "runtime/comm/vector_reduction.h"

#include <algorithm>
#include <cstddef>

#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/comm/vector_reduction.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

struct Sum {
  template <class D, class V>
  static HWY_INLINE V Of(D, V a, V b) {
    return hn::Add(a, b);
  }
};

struct Product {
  template <class D, class V>
  static HWY_INLINE V Of(D, V a, V b) {
    return hn::Mul(a, b);
  }
};

// A NaN in `b` fails the comparison and is taken; one in `a` is kept.
struct Min {
  template <class D, class V>
  static HWY_INLINE V Of(D, V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
  }
};

struct Max {
  template <class D, class V>
  static HWY_INLINE V Of(D, V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
  }
};

// A vector of memory as what its elements are combined in: themselves.
template <class T>
struct Direct {
  using D = HWY_FULL(T);
  using V = hn::Vec<D>;

  static HWY_INLINE V Load(D d, const char* from) { return hn::LoadU(d, reinterpret_cast<const T*>(from)); }
  template <class Op>
  static HWY_INLINE V Combine(D d, V a, V b) {
    return Op::Of(d, a, b);
  }
  static HWY_INLINE void Store(D d, V a, char* to) { hn::StoreU(a, d, reinterpret_cast<T*>(to)); }
  static HWY_INLINE void Stream(D d, V a, char* to) { hn::Stream(a, d, reinterpret_cast<T*>(to)); }
};

// Or, for bf16, as two of floats: of the lower and of the upper halves of its 32-bit words.
struct Bf16 {
  using D = HWY_FULL(float);
  using Bits = hn::RebindToUnsigned<D>;
  using F = hn::Vec<D>;
  using U = hn::Vec<Bits>;
  struct V {
    F lower, upper;
  };

  static HWY_INLINE V Load(D d, const char* from) {
    const Bits bits;
    const U words = hn::LoadU(bits, reinterpret_cast<const uint32_t*>(from));
    return {hn::BitCast(d, hn::ShiftLeft<16>(words)),
            hn::BitCast(d, hn::And(words, hn::Set(bits, 0xffff0000u)))};
  }
  template <class Op>
  static HWY_INLINE V Combine(D d, V a, V b) {
    return {Op::Of(d, a.lower, b.lower), Op::Of(d, a.upper, b.upper)};
  }

  // The nearest bf16, ties to even, in the upper half of each word, whose lower half is left as it comes.
  static HWY_INLINE U Round(F x) {
    const Bits bits;
    const U word = hn::BitCast(bits, x);
    const U odd = hn::And(hn::ShiftRight<16>(word), hn::Set(bits, 1u));
    const U rounded = hn::Add(hn::Add(word, hn::Set(bits, 0x7fffu)), odd);
    const U quiet = hn::Or(word, hn::Set(bits, 0x400000u));
    return hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(x)), quiet, rounded);
  }
  static HWY_INLINE U Rounded(V a) {
    const Bits bits;
    return hn::Or(hn::ShiftRight<16>(Round(a.lower)), hn::And(Round(a.upper), hn::Set(bits, 0xffff0000u)));
  }
  static HWY_INLINE void Store(D, V a, char* to) {
    hn::StoreU(Rounded(a), Bits(), reinterpret_cast<uint32_t*>(to));
  }
  static HWY_INLINE void Stream(D, V a, char* to) {
    hn::Stream(Rounded(a), Bits(), reinterpret_cast<uint32_t*>(to));
  }
};

bool OnLines(const VectorPass& pass) {
  return std::all_of(pass.outputs.begin(), pass.outputs.end(),
                     [](const void* output) { return reinterpret_cast<uintptr_t>(output) % 64 == 0; });
}

// All inputs of a step are read before any output is written: they may be the same memory.
template <class E, class Op>
int64_t Reduce(const VectorPass& pass) {
  const typename E::D d;
  const int64_t vector = static_cast<int64_t>(hn::Lanes(d) * sizeof(hn::TFromD<typename E::D>));
  const int64_t step = 4 * vector;
  const bool stream = pass.stream && OnLines(pass);
  int64_t i = 0;
  for (; i + step <= pass.num_bytes; i += step) {
    const char* from = static_cast<const char*>(pass.inputs[0]) + i;
    typename E::V a0 = E::Load(d, from);
    typename E::V a1 = E::Load(d, from + vector);
    typename E::V a2 = E::Load(d, from + 2 * vector);
    typename E::V a3 = E::Load(d, from + 3 * vector);
    for (size_t input = 1; input < pass.inputs.size(); ++input) {
      from = static_cast<const char*>(pass.inputs[input]) + i;
      a0 = E::template Combine<Op>(d, a0, E::Load(d, from));
      a1 = E::template Combine<Op>(d, a1, E::Load(d, from + vector));
      a2 = E::template Combine<Op>(d, a2, E::Load(d, from + 2 * vector));
      a3 = E::template Combine<Op>(d, a3, E::Load(d, from + 3 * vector));
    }
    for (void* const output : pass.outputs) {
      char* const to = static_cast<char*>(output) + i;
      if (stream) {
        E::Stream(d, a0, to);
        E::Stream(d, a1, to + vector);
        E::Stream(d, a2, to + 2 * vector);
        E::Stream(d, a3, to + 3 * vector);
      } else {
        E::Store(d, a0, to);
        E::Store(d, a1, to + vector);
        E::Store(d, a2, to + 2 * vector);
        E::Store(d, a3, to + 3 * vector);
      }
    }
  }
  if (stream) hwy::FlushStream();  // else a peer could see the barrier's store before these
  return i;
}

template <class E>
int64_t ReduceAs(ReduceOp op, const VectorPass& pass) {
  switch (op) {
    case ReduceOp::kSum:
      return Reduce<E, Sum>(pass);
    case ReduceOp::kAvg:
      return 0;  // sums in a wider type
    case ReduceOp::kMin:
      return Reduce<E, Min>(pass);
    case ReduceOp::kMax:
      return Reduce<E, Max>(pass);
    case ReduceOp::kProduct:
      return Reduce<E, Product>(pass);
  }
  return 0;
}

int64_t ReduceAny(DType dtype, ReduceOp op, const VectorPass& pass) {
  switch (dtype) {
    case DType::kF32:
      return ReduceAs<Direct<float>>(op, pass);
    case DType::kF64:
      return ReduceAs<Direct<double>>(op, pass);
    case DType::kBF16:
      return ReduceAs<Bf16>(op, pass);
    default:
      return 0;
  }
}

int64_t Copy(const VectorPass& pass) { return Reduce<Direct<float>, Sum>(pass); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(ReduceAny);
HWY_EXPORT(Copy);

}  // namespace

int64_t ReduceVectors(DType dtype, ReduceOp op, const VectorPass& pass) {
  return HWY_DYNAMIC_DISPATCH(ReduceAny)(dtype, op, pass);
}

int64_t CopyVectors(const VectorPass& pass) {
  return HWY_DYNAMIC_DISPATCH(Copy)({pass.inputs.first(1), pass.outputs, pass.num_bytes, pass.stream});
}

}  // namespace weft
#endif  // HWY_ONCE
