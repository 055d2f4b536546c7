#include "runtime/comm/reduction.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace weft {
namespace {

// Elements that one block of accumulators holds: 16 KiB at most, so that it stays in the first-level cache
// while each input streams by.
constexpr int64_t kBlock = 2048;

// What elements of T are combined in.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double,
                                       std::conditional_t<std::is_integral_v<T>, int64_t, float>>;

// Integer sums and products wrap: through unsigned, where that is defined.
struct Sum {
  template <class A>
  A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
};

struct Product {
  template <class A>
  A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) {
      return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

// A NaN in `b` fails the comparison and is taken; one in `a` is kept.
struct Min {
  template <class A>
  A operator()(A a, A b) const {
    if constexpr (std::is_floating_point_v<A>) return (a < b || a != a) ? a : b;
    return a < b ? a : b;
  }
};

struct Max {
  template <class A>
  A operator()(A a, A b) const {
    if constexpr (std::is_floating_point_v<A>) return (a > b || a != a) ? a : b;
    return a > b ? a : b;
  }
};

struct Keep {
  template <class A>
  A operator()(A a) const {
    return a;
  }
};

struct Divide {
  int64_t divisor;
  template <class A>
  A operator()(A a) const {
    return a / static_cast<A>(divisor);
  }
};

// The loops below may have `output` equal to an input, never shifted against it: no dependence between
// iterations, which is what ivdep says and __restrict would not.
template <class T, class Combine, class Finish>
void ReduceTyped(absl::Span<const void* const> inputs, T* output, int64_t count, Combine combine,
                 Finish finish) {
  using A = Accumulator<T>;
  const auto input = [&](size_t rank) { return static_cast<const T*>(inputs[rank]); };
  const size_t last = inputs.size() - 1;
  if (last == 0) {
    const T* a = input(0);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) output[i] = static_cast<T>(finish(static_cast<A>(a[i])));
    return;
  }
  if (last == 1) {
    const T* a = input(0);
    const T* b = input(1);
#pragma GCC ivdep
    for (int64_t i = 0; i < count; ++i) {
      output[i] = static_cast<T>(finish(combine(static_cast<A>(a[i]), static_cast<A>(b[i]))));
    }
    return;
  }
  // The output is written in the last pass only, when the other inputs of the block have been read: it may
  // be any one of them.
  alignas(64) A block[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const T* a = input(0) + begin;
    const T* b = input(1) + begin;
    for (int64_t i = 0; i < length; ++i) block[i] = combine(static_cast<A>(a[i]), static_cast<A>(b[i]));
    for (size_t rank = 2; rank < last; ++rank) {
      const T* c = input(rank) + begin;
      for (int64_t i = 0; i < length; ++i) block[i] = combine(block[i], static_cast<A>(c[i]));
    }
    const T* z = input(last) + begin;
    T* out = output + begin;
#pragma GCC ivdep
    for (int64_t i = 0; i < length; ++i) {
      out[i] = static_cast<T>(finish(combine(block[i], static_cast<A>(z[i]))));
    }
  }
}

}  // namespace

void ReduceInOrder(DType dtype, ReduceOp op, absl::Span<const void* const> inputs, void* output,
                   int64_t count) {
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const typed = static_cast<T*>(output);
    switch (op) {
      case ReduceOp::kSum:
        return ReduceTyped(inputs, typed, count, Sum(), Keep());
      case ReduceOp::kAvg:
        return ReduceTyped(inputs, typed, count, Sum(), Divide{static_cast<int64_t>(inputs.size())});
      case ReduceOp::kMin:
        return ReduceTyped(inputs, typed, count, Min(), Keep());
      case ReduceOp::kMax:
        return ReduceTyped(inputs, typed, count, Max(), Keep());
      case ReduceOp::kProduct:
        return ReduceTyped(inputs, typed, count, Product(), Keep());
    }
  });
}

}  // namespace weft
