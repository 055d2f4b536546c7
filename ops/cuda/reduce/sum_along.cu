#include <cuda_runtime.h>

#include "ops/cuda/blocks/result_writer.h"
#include "ops/cuda/reduce/reduce_dims.h"
#include "ops/cuda/reduce/sum_along.h"

namespace weft {
namespace {

// Elements add up in what they are computed in for the few of a run, then in double: doubles cost a GPU a
// multiple of floats, so most additions are not theirs, but no sum of floats gets long enough to lose digits.
template <class T>
struct FloatSum : SumReduction<T, WideOf<T>> {
  using Run = WideOf<T>;
  struct Around {};

  __device__ Around Of(int64_t) const { return {}; }
  __device__ void Take(Run& run, T x, int64_t, Around) const { run += static_cast<Run>(x); }
  __device__ void Write(int64_t result, double sum) const { y.Write(result, sum * factor); }

  ResultWriter<T> y;
  double factor;
};

// Of (x - around)^2, in R.
// Squares of differences, not a difference of squares: E[x^2] - mean^2 cancels where the mean is large beside
// the deviation.
template <class T, class R>
struct SquareSum : SumReduction<T, R> {
  using Around = WideOf<T>;

  __device__ Around Of(int64_t result) const { return around == nullptr ? Around(0) : around[result]; }
  __device__ void Take(R& run, T x, int64_t, Around center) const {
    const R centered = static_cast<R>(static_cast<Around>(x)) - static_cast<R>(center);
    run += centered * centered;
  }
  __device__ void Write(int64_t result, double sum) const {
    y.Write(result, take_root ? sqrt(sum * factor) : sum * factor);
  }

  ResultWriter<T> y;
  double factor;
  bool take_root;
  const Around* around;  // null: 0
};

// Unsigned, so that integers wrap.
// Sums modulo 2^64 do not depend on their order, so these bits are the CPU's without any care, and those of
// i32 are the low half.
template <class T>
struct IntegerSum : PlainReduction<T, uint64_t> {
  __device__ uint64_t NoState() const { return 0; }
  __device__ uint64_t NoRun() const { return 0; }
  template <class Around>
  __device__ void Take(uint64_t& run, T x, int64_t, Around) const {
    run += static_cast<uint64_t>(x);
  }
  __device__ void Absorb(uint64_t& sum, uint64_t run) const { sum += run; }
  __device__ void Merge(uint64_t& sum, uint64_t other) const { sum += other; }
  __device__ void Write(int64_t result, uint64_t sum) const { y[result] = static_cast<T>(sum); }

  T* y;
};

}  // namespace

void SumAlong(const KernelCallBase& call, const Tensor& x, DimMask dims, const Tensor& y,
              const SumOptions& options) {
  VisitDType(x.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_same_v<T, uint8_t> || std::is_same_v<T, bool>) {
      WEFT_CHECK(false, "no sums of ", DTypeName(x.dtype()));
    } else if constexpr (std::is_integral_v<T>) {
      IntegerSum<T> reduction;
      reduction.y = y.data<T>();
      ReduceAlong(call, x, dims, reduction);
    } else if (options.square || options.around.defined()) {
      const WideOf<T>* const around =
          options.around.defined() ? options.around.template data<WideOf<T>>() : nullptr;
      const auto reduce = [&](auto run) {
        using Squares = SquareSum<T, decltype(run)>;
        ReduceAlong(call, x, dims,
                    Squares{{}, ResultWriter<T>(y), options.factor, options.take_root, around});
      };
      if (options.in_double) {
        reduce(double());
      } else {
        reduce(WideOf<T>());
      }
    } else {
      ReduceAlong(call, x, dims, FloatSum<T>{{}, ResultWriter<T>(y), options.factor});
    }
  });
}

}  // namespace weft
