#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/creation/random.h"
#include "ops/cuda/blocks/map_elements.h"
#include "ops/cuda/blocks/rounded.h"
#include "ops/cuda/creation/random_runs.h"
#include "ops/op/kernel.h"
#include "runtime/base/normal_quantile.h"
#include "runtime/base/philox_parts.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

// Bits are those of ops/cpu/creation/random.cc: the words' by definition, the values' because products and
// sums are rounded one by one in the CPU's order.

// Elements that a thread makes: 16 bytes of them, and at least a block of four words.
// Philox is a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011): a block of four words is a function of key and counter, so threads share no state and element i has
// the same word on every layout.
template <class T>
inline constexpr int kUnitOf = std::max(4, 16 / static_cast<int>(sizeof(T)));

template <class T, int kUnit>
__device__ bool IsPack(const T* address) {
  return reinterpret_cast<uintptr_t>(address) % sizeof(ElementPack<T, kUnit>) == 0;
}

// y = function(its random word, x). Where Function reads no x, `x` is null.
// A thread takes whole blocks of words: one that made single elements would run all rounds of Philox for each
// of four words and throw three away.
template <class Function, class T>
__global__ void RandomKernel(PhiloxStream stream, RandomRuns runs, Function function, const T* x,
                             StridedLoops<1> x_loops, bool x_contiguous, T* y) {
  constexpr int kUnit = kUnitOf<T>;
  using Value = ElementValue<T>;
  ForEachOfGrid(runs.num_units, [&](int64_t i) {
    const RandomUnit unit = UnitOf<kUnit>(runs, i);
    if (unit.begin >= unit.end) return;
    // Units begin at multiples of kUnit in the global tensor. In a piece that begins elsewhere they lie at
    // addresses that are no multiples of a pack, and go element by element.
    const bool whole = unit.begin == 0 && unit.end == kUnit;
    Value values[kUnit] = {};
    if constexpr (Function::kReads) {
      const T* const from = x + unit.local;
      if (whole && x_contiguous && IsPack<T, kUnit>(from)) {
        const auto pack = *reinterpret_cast<const ElementPack<T, kUnit>*>(from);
#pragma unroll
        for (int j = 0; j < kUnit; ++j) values[j] = ConvertElement<Value>(pack.items[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kUnit; ++j) {
          if (j < unit.begin || j >= unit.end) continue;
          int64_t at[1] = {unit.local + j};
          if (!x_contiguous) x_loops.Offsets(unit.local + j, at);
          values[j] = ConvertElement<Value>(x[at[0]]);
        }
      }
    }
#pragma unroll
    for (int block = 0; block < kUnit / 4; ++block) {
      const PhiloxWords words = RandomWordsOf(stream, unit.index / 4 + static_cast<uint64_t>(block));
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) {
        Value& value = values[4 * block + lane];
        value = ConvertElement<Value>(function(words[lane], value));
      }
    }
    T* const to = y + unit.local;
    if (whole && IsPack<T, kUnit>(to)) {
      ElementPack<T, kUnit> pack;
#pragma unroll
      for (int j = 0; j < kUnit; ++j) pack.items[j] = ConvertElement<T>(values[j]);
      StorePack(pack, to);
    } else {
#pragma unroll
      for (int j = 0; j < kUnit; ++j) {
        if (j >= unit.begin && j < unit.end) to[j] = ConvertElement<T>(values[j]);
      }
    }
  });
}

// `x` is output 0's operand, or null.
template <class T, class A, class R, class Function>
void MapWords(const KernelCall<A, R>& call, const Function& function, const Tensor* x) {
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  const int64_t base = FirstRandomIndex(call.output_boxes[0].global_shape, call.scalars().batch_offset);
  const RandomRuns runs = MakeRandomRuns<kUnitOf<T>>(call.output_boxes[0], base);
  const StridedLoops<1> x_loops =
      x == nullptr ? StridedLoops<1>() : MakeStridedLoops(x->shape(), {x->strides()});
  LaunchCuda(KernelStream(call), GridOver(runs.num_units), RandomKernel<Function, T>,
             StreamParts(call.scalars().key), runs, function, x == nullptr ? nullptr : x->data<T>(), x_loops,
             IsContiguousIn(x_loops, 0), y.data<T>());
}

struct UniformOf {
  static constexpr bool kReads = false;
  float low, width;

  template <class C>
  __device__ float operator()(uint32_t word, C) const {
    return AddRounded(low, MulRounded(width, UniformFromWord(word)));
  }
};
// By the quantile of one uniform number, not by Box and Muller's pairs: element i needs its own word alone,
// wherever a piece begins.
struct NormalOf {
  static constexpr bool kReads = false;
  float mean, stddev;

  template <class C>
  __device__ float operator()(uint32_t word, C) const {
    return AddRounded(mean, MulRounded(stddev, NormalQuantile<RoundedMath>::FromWord(word)));
  }
};
// Integers are compared, not floats: the same decision without a conversion.
struct IsBelow {
  static constexpr bool kReads = false;
  uint32_t threshold;

  template <class C>
  __device__ float operator()(uint32_t word, C) const {
    return (word >> 8) < threshold ? 1.0f : 0.0f;
  }
};
// A kernel that does not wait cannot throw: NaN for what is no probability.
struct IsBelowElement {
  static constexpr bool kReads = true;

  template <class C>
  __device__ C operator()(uint32_t word, C p) const {
    if (!(p >= 0 && p <= 1)) return std::numeric_limits<C>::quiet_NaN();
    return UniformFromWord(word) < p ? C(1) : C(0);
  }
};
template <class C>
struct DropoutOf {
  static constexpr bool kReads = true;
  uint32_t threshold;
  C scale;

  __device__ C operator()(uint32_t word, C x) const { return (word >> 8) < threshold ? C(0) : x * scale; }
};

template <class R, class Function>
void FillFloating(const KernelCall<CreationAttributes, R>& call, const Function& function) {
  VisitFloating(call.outputs[0].dtype(), "random", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapWords<T>(call, function, /*x=*/nullptr);
  });
}

void RandomUniform(const KernelCall<CreationAttributes, UniformScalars>& call) {
  const UniformScalars& s = call.scalars();
  FillFloating(call, UniformOf{static_cast<float>(s.low), static_cast<float>(s.high - s.low)});
}

void RandomNormal(const KernelCall<CreationAttributes, NormalScalars>& call) {
  const NormalScalars& s = call.scalars();
  FillFloating(call, NormalOf{static_cast<float>(s.mean), static_cast<float>(s.stddev)});
}

// Uniform < probability, as integers: the uniform is the top 24 bits of the word times 2^-24.
uint32_t ThresholdOf(double probability) { return static_cast<uint32_t>(std::ceil(probability * 0x1p24)); }

void Bernoulli(const KernelCall<CreationAttributes, BernoulliScalars>& call) {
  const double probability = call.scalars().probability;
  WEFT_REQUIRE(probability >= 0 && probability <= 1, "bernoulli: expected a probability in [0, 1], got ",
               probability);
  VisitDType(call.outputs[0].dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapWords<T>(call, IsBelow{ThresholdOf(probability)}, /*x=*/nullptr);
  });
}

void BernoulliOf(const KernelCall<NoAttributes, KeyScalars>& call) {
  VisitFloating(call.outputs[0].dtype(), "bernoulli_of", [&](auto tag) {
    using T = typename decltype(tag)::type;
    MapWords<T>(call, IsBelowElement(), &call.inputs[0]);
  });
}

void Dropout(const KernelCall<NoAttributes, DropoutScalars>& call) {
  const DropoutScalars& scalars = call.scalars();
  WEFT_REQUIRE(scalars.rate >= 0 && scalars.rate < 1, "dropout: expected a rate in [0, 1), got ",
               scalars.rate);
  VisitFloating(call.outputs[0].dtype(), "dropout", [&](auto tag) {
    using T = typename decltype(tag)::type;
    using C = ElementValue<T>;
    const DropoutOf<C> function = {ThresholdOf(scalars.rate), static_cast<C>(1 / (1 - scalars.rate))};
    MapWords<T>(call, function, &call.inputs[0]);
  });
}

void Fill(const KernelCall<CreationAttributes, FillScalars>& call) {
  FillTensor(call.outputs[0], call.scalars().value);
}

template <class T>
__global__ void ArangeKernel(double start, double step, int64_t offset, T* y, int64_t count) {
  ForEachOfGrid(count, [&](int64_t i) {
    y[i] = ConvertElement<T>(AddRounded(start, MulRounded(static_cast<double>(offset + i), step)));
  });
}

// A product per element rather than a running sum: no thread waits for another, and a piece gets the numbers
// that the whole has there.
void Arange(const KernelCall<CreationAttributes, ArangeScalars>& call) {
  const Tensor& y = call.outputs[0];
  if (y.num_elements() == 0) return;
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    LaunchCuda(KernelStream(call), GridOver(y.num_elements()), ArangeKernel<T>, call.scalars().start,
               call.scalars().step, call.output_boxes[0].offset[0], y.data<T>(), y.num_elements());
  });
}

const RegisterKernel kRegister[] = {
    {kRandomUniform, DeviceType::kCuda, RandomUniform},
    {kRandomNormal, DeviceType::kCuda, RandomNormal},
    {kBernoulli, DeviceType::kCuda, Bernoulli},
    {kBernoulliOf, DeviceType::kCuda, BernoulliOf},
    {kFill, DeviceType::kCuda, Fill},
    {kArange, DeviceType::kCuda, Arange},
    {kDropout, DeviceType::kCuda, Dropout},
};

}  // namespace
}  // namespace weft
