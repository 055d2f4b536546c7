#include "runtime/comm/reduction.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "runtime/comm/vector_reduction.h"

namespace weft {
namespace {

// Elements that one block of accumulators holds: 16 KiB at most, so that it stays in the first-level cache
// while each input streams by; 32 KiB for averages of f64 and i64.
constexpr int64_t kBlock = 2048;

// From here on the call of the vector loops is worth it.
constexpr int64_t kVectorBytes = 128;

// What elements of T are combined in.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double,
                                       std::conditional_t<std::is_integral_v<T>, int64_t, float>>;

// For an average: wide enough that the sum of equal terms is exact and in range, so that it is their value once divided. A
// value that becomes Partial(avg) has equal terms. Three of f32, summed in float, come back an ulp away for one value in six.
__extension__ using Int128 = __int128;
template <class T>
using WideAccumulator =
    std::conditional_t<std::is_same_v<T, double>, long double,
                       std::conditional_t<std::is_same_v<T, int64_t>, Int128,
                                          std::conditional_t<std::is_integral_v<T>, int64_t, double>>>;

// Integer sums and products wrap: through unsigned, where that is defined.
struct Sum {
  template <class A>
  A operator()(A a, A b) const {
    if constexpr (std::is_same_v<A, int64_t>) {
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

// Elements from `begin` on, in blocks. The outputs are written in the last pass only, when the other inputs
// of the block have been read: each may be any one of them. No dependence between iterations, which is what
// ivdep says and __restrict would not.
template <class T, class A = Accumulator<T>, class Combine, class Finish>
void ReduceTyped(absl::Span<const void* const> inputs, absl::Span<void* const> outputs, int64_t begin,
                 int64_t count, Combine combine, Finish finish) {
  const auto input = [&](size_t rank) { return static_cast<const T*>(inputs[rank]); };
  const size_t last = inputs.size() - 1;
  alignas(64) A block[kBlock];
  for (; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const T* z = input(last) + begin;
    T* out = static_cast<T*>(outputs[0]) + begin;
    if (last == 0) {
#pragma GCC ivdep
      for (int64_t i = 0; i < length; ++i) out[i] = static_cast<T>(finish(static_cast<A>(z[i])));
    } else if (last == 1) {
      const T* a = input(0) + begin;
#pragma GCC ivdep
      for (int64_t i = 0; i < length; ++i) {
        out[i] = static_cast<T>(finish(combine(static_cast<A>(a[i]), static_cast<A>(z[i]))));
      }
    } else {
      const T* a = input(0) + begin;
      const T* b = input(1) + begin;
      for (int64_t i = 0; i < length; ++i) block[i] = combine(static_cast<A>(a[i]), static_cast<A>(b[i]));
      for (size_t rank = 2; rank < last; ++rank) {
        const T* c = input(rank) + begin;
        for (int64_t i = 0; i < length; ++i) block[i] = combine(block[i], static_cast<A>(c[i]));
      }
#pragma GCC ivdep
      for (int64_t i = 0; i < length; ++i) {
        out[i] = static_cast<T>(finish(combine(block[i], static_cast<A>(z[i]))));
      }
    }
    for (void* const other : outputs.subspan(1)) {
      std::memcpy(static_cast<T*>(other) + begin, out, length * sizeof(T));
    }
  }
}

}  // namespace

Stores StoresFor(int64_t num_bytes, int64_t num_copies) {
  static const int64_t cache_bytes = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), 4 << 20);
  return num_bytes * num_copies > cache_bytes ? Stores::kStreaming : Stores::kCached;
}

void ReduceInOrder(DType dtype, ReduceOp op, absl::Span<const void* const> inputs,
                   absl::Span<void* const> outputs, int64_t count, Stores stores) {
  int64_t begin = 0;
  if (count * ItemSize(dtype) >= kVectorBytes) {
    begin =
        ReduceVectors(dtype, op, {inputs, outputs, count * ItemSize(dtype), stores == Stores::kStreaming}) /
        ItemSize(dtype);
  }
  VisitDType(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t size = static_cast<int64_t>(inputs.size());
    switch (op) {
      case ReduceOp::kSum:
        return ReduceTyped<T>(inputs, outputs, begin, count, Sum(), Keep());
      case ReduceOp::kAvg:
        return ReduceTyped<T, WideAccumulator<T>>(inputs, outputs, begin, count, Sum(), Divide{size});
      case ReduceOp::kMin:
        return ReduceTyped<T>(inputs, outputs, begin, count, Min(), Keep());
      case ReduceOp::kMax:
        return ReduceTyped<T>(inputs, outputs, begin, count, Max(), Keep());
      case ReduceOp::kProduct:
        return ReduceTyped<T>(inputs, outputs, begin, count, Product(), Keep());
    }
  });
}

void CopyToAll(const void* input, absl::Span<void* const> outputs, int64_t num_bytes, Stores stores) {
  int64_t begin = 0;
  if (num_bytes >= kVectorBytes && (outputs.size() > 1 || stores == Stores::kStreaming)) {
    begin = CopyVectors({{&input, 1}, outputs, num_bytes, stores == Stores::kStreaming});
  }
  if (begin == num_bytes) return;
  for (void* const output : outputs) {
    std::memcpy(static_cast<char*>(output) + begin, static_cast<const char*>(input) + begin,
                num_bytes - begin);
  }
}

}  // namespace weft
