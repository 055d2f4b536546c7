#include "ops/creation/random.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/creation/dropout_span.h"
#include "ops/cpu/creation/global_runs.h"
#include "ops/cpu/creation/random_spans.h"
#include "ops/cpu/spans/element_blocks.h"
#include "ops/op/kernel.h"
#include "runtime/tensor/convert_spans.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

constexpr int64_t kGrain = 16384;  // elements a task

// 2 KiB, and as many floats for types that are converted: both stay in the first cache.
constexpr int64_t kWords = 512;  // random words that are made at once, and used while in cache

// Calls body(i, words, count) with the random words of elements first + i on, for stretches of [0, n).
template <class Body>
void ForEachWords(const RandomKey& key, int64_t first, int64_t n, const Body& body) {
  alignas(64) uint32_t words[kWords];
  for (int64_t i = 0, count = 0; i < n; i += count) {
    // From the second stretch on, whole blocks of four words: their borders are those of stretches.
    count = std::min(n - i, i == 0 ? kWords - first % 4 : kWords);
    RandomWordSpan(key, static_cast<uint64_t>(first + i), words, count);
    body(i, words, count);
  }
}

// The random index of the global tensor's first element.
template <class A, class R>
int64_t FirstIndexOf(const KernelCall<A, R>& call) {
  return FirstRandomIndex(call.output_boxes[0].global_shape, call.scalars().batch_offset);
}

// y = what span(words, y, n) makes, in f32, of the words of its elements in the global tensor, rounded to the
// dtype.
// Words belong to elements of the whole tensor, so every layout draws the same numbers, and a rank makes none
// that it does not need.
template <class R, class Span>
void FillRandom(const KernelCall<CreationAttributes, R>& call, const Span& span) {
  const Tensor& y = call.outputs[0];
  const int64_t base = FirstIndexOf(call);
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const out = y.data<T>();
    call.context.pool.ParallelFor(y.num_elements(), kGrain, [&](int64_t begin, int64_t end) {
      ForEachGlobalRun(call.output_boxes[0], begin, end, [&](int64_t first, int64_t global, int64_t n) {
        ForEachWords(call.scalars().key, base + global, n,
                     [&](int64_t i, const uint32_t* words, int64_t count) {
                       if constexpr (std::is_same_v<T, float>) {
                         span(words, out + first + i, count);
                       } else {
                         float values[kWords];
                         span(words, values, count);
                         ConvertSpan(values, out + first + i, count);
                       }
                     });
      });
    });
  });
}

// span(first, x, y, n) for stretches of elements that follow each other in the global tensor from `first` on.
template <class C, class Span>
void MapGlobalRuns(const KernelCallBase& call, const Span& span) {
  const Tensor& y = call.outputs[0];
  ForEachElementBlock<C>(call.context.pool, y.shape(), {{call.inputs[0]}, {y, ElementStream::kWrite}},
                         [&](C* const* spans, int64_t block, int64_t count) {
                           ForEachGlobalRun(call.output_boxes[0], block, block + count,
                                            [&](int64_t first, int64_t global, int64_t n) {
                                              span(global, static_cast<const C*>(spans[0] + (first - block)),
                                                   spans[1] + (first - block), n);
                                            });
                         });
}

// span(words, x, y, n), with the words of base + i in the global tensor.
template <class C, class Span>
void MapWords(const KernelCallBase& call, const RandomKey& key, int64_t base, const Span& span) {
  MapGlobalRuns<C>(call, [&](int64_t global, const C* x, C* y, int64_t n) {
    ForEachWords(key, base + global, n, [&](int64_t i, const uint32_t* words, int64_t stretch) {
      span(words, x + i, y + i, stretch);
    });
  });
}

void RandomUniform(const KernelCall<CreationAttributes, UniformScalars>& call) {
  const float low = static_cast<float>(call.scalars().low);
  const float width = static_cast<float>(call.scalars().high - call.scalars().low);
  FillRandom(call, [=](const uint32_t* words, float* y, int64_t n) { UniformSpan(words, low, width, y, n); });
}

void RandomNormal(const KernelCall<CreationAttributes, NormalScalars>& call) {
  const float mean = static_cast<float>(call.scalars().mean);
  const float stddev = static_cast<float>(call.scalars().stddev);
  FillRandom(call,
             [=](const uint32_t* words, float* y, int64_t n) { NormalSpan(words, mean, stddev, y, n); });
}

// Uniform < probability, as integers: the uniform is the top 24 bits of the word times 2^-24.
uint32_t ThresholdOf(double probability) { return static_cast<uint32_t>(std::ceil(probability * 0x1p24)); }

void Bernoulli(const KernelCall<CreationAttributes, BernoulliScalars>& call) {
  const double probability = call.scalars().probability;
  WEFT_REQUIRE(probability >= 0 && probability <= 1, "bernoulli: expected a probability in [0, 1], got ",
               probability);
  const uint32_t threshold = ThresholdOf(probability);
  FillRandom(call, [=](const uint32_t* words, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = (words[i] >> 8) < threshold ? 1.0f : 0.0f;
  });
}

void BernoulliOf(const KernelCall<NoAttributes, KeyScalars>& call) {
  const Tensor& y = call.outputs[0];
  VisitArithmeticType(y.dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapWords<C>(call, call.scalars().key, FirstIndexOf(call),
                [](const uint32_t* words, const C* p, C* y, int64_t n) {
                  for (int64_t i = 0; i < n; ++i) {
                    WEFT_REQUIRE(p[i] >= 0 && p[i] <= 1,
                                 "bernoulli_of: expected probabilities in [0, 1], got ", p[i]);
                    y[i] = UniformFromWord(words[i]) < p[i] ? C(1) : C(0);
                  }
                });
  });
}

void Fill(const KernelCall<CreationAttributes, FillScalars>& call) {
  FillTensor(call.outputs[0], call.scalars().value);
}

// start + i step in double and not a running sum, whose error would grow along the tensor and whose pieces
// would differ from the whole.
void Arange(const KernelCall<CreationAttributes, ArangeScalars>& call) {
  const Tensor& y = call.outputs[0];
  const int64_t offset = call.output_boxes[0].offset[0];
  const ArangeScalars& scalars = call.scalars();
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const out = y.data<T>();
    for (int64_t i = 0; i < y.num_elements(); ++i) {
      out[i] = ConvertElement<T>(scalars.start + static_cast<double>(offset + i) * scalars.step);
    }
  });
}

void Dropout(const KernelCall<NoAttributes, DropoutScalars>& call) {
  const DropoutScalars& scalars = call.scalars();
  WEFT_REQUIRE(scalars.rate >= 0 && scalars.rate < 1, "dropout: expected a rate in [0, 1), got ",
               scalars.rate);
  const int64_t base = FirstIndexOf(call);
  const uint32_t threshold = ThresholdOf(scalars.rate);
  const double scale = 1 / (1 - scalars.rate);
  // f32 and bf16 make their words in registers. f64 takes them from memory: it serves verification.
  const auto drop = [&]<class T>(TypeTag<T>) {
    MapGlobalRuns<T>(call, [&](int64_t global, const T* x, T* y, int64_t n) {
      DropoutSpan(scalars.key, static_cast<uint64_t>(base + global), x, threshold, static_cast<float>(scale),
                  y, n);
    });
  };
  const auto dtype = call.outputs[0].dtype();
  if (dtype == DType::kBF16) return drop(TypeTag<BFloat16>());
  if (dtype != DType::kF64) return drop(TypeTag<float>());
  MapWords<double>(call, scalars.key, base,
                   [=](const uint32_t* words, const double* x, double* y, int64_t n) {
                     for (int64_t i = 0; i < n; ++i) y[i] = (words[i] >> 8) >= threshold ? x[i] * scale : 0;
                   });
}

const RegisterKernel kRegister[] = {
    {kRandomUniform, DeviceType::kCpu, RandomUniform},
    {kRandomNormal, DeviceType::kCpu, RandomNormal},
    {kBernoulli, DeviceType::kCpu, Bernoulli},
    {kBernoulliOf, DeviceType::kCpu, BernoulliOf},
    {kFill, DeviceType::kCpu, Fill},
    {kArange, DeviceType::kCpu, Arange},
    {kDropout, DeviceType::kCpu, Dropout},
};

}  // namespace
}  // namespace weft
