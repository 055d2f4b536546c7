#include "ops/random.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/element_blocks.h"
#include "ops/cpu/global_runs.h"
#include "ops/kernel.h"
#include "runtime/tensor/convert.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

constexpr int64_t kGrain = 16384;  // elements a task

// Calls body(i, word) with the random word of element first + i, for i in [0, n): one Philox call for four.
template <class Body>
void ForEachWord(const RandomKey& key, int64_t first, int64_t n, const Body& body) {
  for (int64_t i = 0; i < n;) {
    const uint64_t element = static_cast<uint64_t>(first + i);
    const PhiloxWords words = RandomWords(key, element / 4);
    for (uint64_t lane = element % 4; lane < 4 && i < n; ++lane, ++i) body(i, words[lane]);
  }
}

// y[i] = value(word of i in the global tensor), rounded to the dtype.
template <class R, class Value>
void FillRandom(const KernelCall<CreationAttributes, R>& call, const Value& value) {
  const Tensor& y = call.outputs[0];
  VisitDType(y.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* const out = y.data<T>();
    call.context.pool.ParallelFor(y.num_elements(), kGrain, [&](int64_t begin, int64_t end) {
      ForEachGlobalRun(call.output_boxes[0], begin, end, [&](int64_t first, int64_t global, int64_t n) {
        ForEachWord(call.scalars().key, global, n,
                    [&](int64_t i, uint32_t word) { out[first + i] = ConvertElement<T>(value(word)); });
      });
    });
  });
}

// y[i] = function(x[i], word of base + i in the global tensor).
template <class C, class Function>
void MapWords(const KernelCallBase& call, const RandomKey& key, int64_t base, const Function& function) {
  const Tensor& y = call.outputs[0];
  ForEachElementBlock<C>(
      call.context.pool, y.shape(), {{call.inputs[0]}, {y, ElementStream::kWrite}},
      [&](C* const* spans, int64_t block, int64_t count) {
        ForEachGlobalRun(call.output_boxes[0], block, block + count,
                         [&](int64_t first, int64_t global, int64_t n) {
                           const C* const from = spans[0] + (first - block);
                           C* const to = spans[1] + (first - block);
                           ForEachWord(key, base + global, n,
                                       [&](int64_t i, uint32_t word) { to[i] = function(from[i], word); });
                         });
      });
}

void RandomUniform(const KernelCall<CreationAttributes, UniformScalars>& call) {
  const float low = static_cast<float>(call.scalars().low);
  const float width = static_cast<float>(call.scalars().high - call.scalars().low);
  FillRandom(call, [=](uint32_t word) { return low + width * UniformFromWord(word); });
}

void RandomNormal(const KernelCall<CreationAttributes, NormalScalars>& call) {
  const float mean = static_cast<float>(call.scalars().mean);
  const float stddev = static_cast<float>(call.scalars().stddev);
  FillRandom(call, [=](uint32_t word) { return mean + stddev * NormalFromWord(word); });
}

// Uniform < probability, as integers: the uniform is the top 24 bits of the word times 2^-24.
uint32_t ThresholdOf(double probability) { return static_cast<uint32_t>(std::ceil(probability * 0x1p24)); }

void Bernoulli(const KernelCall<CreationAttributes, BernoulliScalars>& call) {
  const double probability = call.scalars().probability;
  WEFT_REQUIRE(probability >= 0 && probability <= 1, "bernoulli: expected a probability in [0, 1], got ",
               probability);
  const uint32_t threshold = ThresholdOf(probability);
  FillRandom(call, [=](uint32_t word) { return (word >> 8) < threshold ? 1.0f : 0.0f; });
}

void BernoulliOf(const KernelCall<NoAttributes, KeyScalars>& call) {
  const Tensor& y = call.outputs[0];
  VisitArithmeticType(y.dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    MapWords<C>(call, call.scalars().key, /*base=*/0, [](C p, uint32_t word) {
      WEFT_REQUIRE(p >= 0 && p <= 1, "bernoulli_of: expected probabilities in [0, 1], got ", p);
      return UniformFromWord(word) < p ? C(1) : C(0);
    });
  });
}

void Fill(const KernelCall<CreationAttributes, FillScalars>& call) {
  FillTensor(call.outputs[0], call.scalars().value);
}

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
  const ShardBox& box = call.output_boxes[0];
  int64_t base = 0;
  if (box.shape.ndim() > 0) {
    base = scalars.batch_offset;
    for (int dim = 1; dim < box.shape.ndim(); ++dim) base *= box.global_shape[dim];
  }
  const uint32_t threshold = ThresholdOf(scalars.rate);
  VisitArithmeticType(call.outputs[0].dtype(), [&](auto tag) {
    using C = typename decltype(tag)::type;
    const C scale = static_cast<C>(1 / (1 - scalars.rate));
    MapWords<C>(call, scalars.key, base,
                [=](C x, uint32_t word) { return (word >> 8) >= threshold ? x * scale : C(0); });
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
