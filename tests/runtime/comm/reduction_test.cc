#include "runtime/comm/reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

// In place at every position: the output must not be written while other inputs of the block are unread.
TEST(ReductionTest, OutputMayBeAnyOfTheInputs) {
  for (int num_inputs = 1; num_inputs <= 6; ++num_inputs) {
    for (int64_t count : {0, 1, 7, 2047, 2048, 2049, 5000}) {
      for (int place = 0; place < num_inputs; ++place) {
        std::vector<std::vector<float>> inputs(num_inputs, std::vector<float>(count));
        std::vector<float> expected(count);
        for (int64_t i = 0; i < count; ++i) {
          for (int input = 0; input < num_inputs; ++input) {
            inputs[input][i] = 1.0f / static_cast<float>(1 + i + 7 * input);
            expected[i] = input == 0 ? inputs[0][i] : expected[i] + inputs[input][i];
          }
        }
        std::vector<const void*> pointers;
        for (const std::vector<float>& input : inputs) pointers.push_back(input.data());
        void* const output = inputs[place].data();
        ReduceInOrder(DType::kF32, ReduceOp::kSum, pointers, {&output, 1}, count);
        EXPECT_EQ(inputs[place], expected) << num_inputs << " inputs, output is input " << place;
      }
    }
  }
}

template <class T>
T ReduceScalars(ReduceOp op, std::vector<T> values) {
  std::vector<const void*> pointers;
  for (const T& value : values) pointers.push_back(&value);
  T result;
  void* const output = &result;
  ReduceInOrder(kDTypeOf<T>, op, pointers, {&output, 1}, 1);
  return result;
}

TEST(ReductionTest, IntegersCombineIn64BitsAndWrap) {
  EXPECT_EQ(ReduceScalars<uint8_t>(ReduceOp::kSum, {200, 100}), 44);
  EXPECT_EQ(ReduceScalars<uint8_t>(ReduceOp::kAvg, {200, 100}), 150);
  EXPECT_EQ(ReduceScalars<int32_t>(ReduceOp::kAvg, {-3, -4}), -3);  // toward zero
  EXPECT_EQ(ReduceScalars<int32_t>(ReduceOp::kAvg, {INT32_MAX, INT32_MAX, INT32_MAX}), INT32_MAX);
  EXPECT_EQ(ReduceScalars<int64_t>(ReduceOp::kSum, {INT64_MAX, 1}), INT64_MIN);
  EXPECT_EQ(ReduceScalars<int64_t>(ReduceOp::kAvg, {int64_t{1} << 62, int64_t{1} << 62}), int64_t{1} << 62);
  EXPECT_EQ(ReduceScalars<int64_t>(ReduceOp::kAvg, {INT64_MIN, INT64_MIN, INT64_MIN}), INT64_MIN);
  EXPECT_EQ(ReduceScalars<int64_t>(ReduceOp::kAvg, {INT64_MAX, INT64_MAX - 1}), INT64_MAX - 1);
  EXPECT_EQ(ReduceScalars<int32_t>(ReduceOp::kProduct, {1 << 20, 1 << 20, 3}), 0);
  EXPECT_EQ(ReduceScalars<int32_t>(ReduceOp::kMin, {3, -7, 5}), -7);
}

TEST(ReductionTest, NanAndInfinity) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(ReduceScalars<float>(ReduceOp::kMin, {nan, 1, 2})));
  EXPECT_TRUE(std::isnan(ReduceScalars<float>(ReduceOp::kMax, {1, 2, nan})));
  EXPECT_TRUE(std::isnan(ReduceScalars<float>(ReduceOp::kSum, {inf, 1, -inf})));
  EXPECT_EQ(ReduceScalars<float>(ReduceOp::kMax, {-inf, inf, 1}), inf);
}

// A naive loop over one element, in A. Of two zeros the later is the least and the greatest.
template <class T, class A>
T ReducedElementAs(ReduceOp op, const std::vector<std::vector<T>>& inputs, size_t i) {
  A value = static_cast<A>(inputs[0][i]);
  for (size_t input = 1; input < inputs.size(); ++input) {
    const A next = static_cast<A>(inputs[input][i]);
    switch (op) {
      case ReduceOp::kMin:
        if (!std::isnan(value) && !(value < next)) value = next;
        break;
      case ReduceOp::kMax:
        if (!std::isnan(value) && !(value > next)) value = next;
        break;
      case ReduceOp::kProduct:
        value *= next;
        break;
      default:
        value += next;
    }
  }
  if (op == ReduceOp::kAvg) value /= static_cast<A>(inputs.size());
  return static_cast<T>(value);
}

// In float for the 16-bit types, in double for f64, rounded once; averages in a wider type.
template <class T>
T ReducedElement(ReduceOp op, const std::vector<std::vector<T>>& inputs, size_t i) {
  constexpr bool kIsF64 = std::is_same_v<T, double>;
  if (op == ReduceOp::kAvg) {
    return ReducedElementAs<T, std::conditional_t<kIsF64, long double, double>>(op, inputs, i);
  }
  return ReducedElementAs<T, std::conditional_t<kIsF64, double, float>>(op, inputs, i);
}

// Values of both signs and many magnitudes; now and then inf, NaN, a subnormal, a zero of either sign.
template <class T>
std::vector<T> Values(int seed, int64_t count) {
  std::mt19937 random(seed);
  const float rare[] = {std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN(),
                        0x1p-140f,
                        -0.0f,
                        0.0f};
  std::vector<T> values(count);
  for (T& value : values) {
    const uint32_t bits = random();
    const float common = (static_cast<float>(bits >> 8) * 0x1p-23f - 1) * static_cast<float>(1 << bits % 8);
    value = static_cast<T>(bits % 61 == 0 ? rare[random() % 6] : common);
  }
  return values;
}

template <class T>
bool SameElement(T a, T b) {
  if (std::isnan(static_cast<double>(a))) return std::isnan(static_cast<double>(b));
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

// `count` elements that begin `shift` elements after a multiple of 64 bytes, and a sentinel on each side.
template <class T>
class Guarded {
 public:
  Guarded(int64_t count, int64_t shift) : count_(count), memory_(count + shift + 2 * kGuard, T(7.0f)) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_.data());
    begin_ = static_cast<int64_t>((64 - address % 64) % 64 / sizeof(T)) + 64 / sizeof(T) + shift;
  }
  T* data() { return memory_.data() + begin_; }
  void ExpectUntouchedAround() const {
    EXPECT_EQ(static_cast<float>(memory_[begin_ - 1]), 7);
    EXPECT_EQ(static_cast<float>(memory_[begin_ + count_]), 7);
  }

 private:
  static constexpr int64_t kGuard = 128 / sizeof(T);
  int64_t count_;
  int64_t begin_;
  std::vector<T> memory_;
};

// Every output gets the naive loop's bits, output 0 in place of the last input: any size around whole steps
// of vectors, aligned or not, through the caches or past them.
template <class T>
void ExpectNaiveLoop(ReduceOp op, int num_inputs, int num_outputs, int64_t count, int64_t shift,
                     Stores stores) {
  std::vector<std::vector<T>> inputs;
  for (int input = 0; input < num_inputs; ++input) inputs.push_back(Values<T>(input + 1, count));
  std::vector<Guarded<T>> outputs;
  outputs.reserve(num_outputs);
  for (int output = 0; output < num_outputs; ++output) outputs.emplace_back(count, shift);
  std::vector<void*> to;
  for (Guarded<T>& output : outputs) to.push_back(output.data());
  std::copy(inputs.back().begin(), inputs.back().end(), outputs[0].data());
  std::vector<const void*> from;
  for (const std::vector<T>& input : inputs) from.push_back(input.data());
  from.back() = outputs[0].data();
  ReduceInOrder(kDTypeOf<T>, op, from, to, count, stores);
  for (Guarded<T>& output : outputs) {
    output.ExpectUntouchedAround();
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(SameElement(output.data()[i], ReducedElement(op, inputs, i)))
          << DTypeName(kDTypeOf<T>) << " " << ReduceOpName(op) << " of " << num_inputs << " inputs, element "
          << i << " of " << count << ", shift " << shift;
    }
  }
}

TEST(ReductionTest, EveryOutputGetsTheNaiveLoop) {
  for (ReduceOp op : kAllReduceOps) {
    for (int num_inputs : {1, 2, 3, 4, 8}) {
      for (int64_t count : {0, 1, 31, 63, 64, 65, 127, 128, 129, 2047, 2049, 4133}) {
        for (int64_t shift : {0, 1}) {
          for (Stores stores : {Stores::kCached, Stores::kStreaming}) {
            const int num_outputs = count % 2 == 0 ? num_inputs : 1;
            ExpectNaiveLoop<float>(op, num_inputs, num_outputs, count, shift, stores);
            ExpectNaiveLoop<double>(op, num_inputs, num_outputs, count, shift, stores);
            ExpectNaiveLoop<BFloat16>(op, num_inputs, num_outputs, count, shift, stores);
            ExpectNaiveLoop<Float16>(op, num_inputs, num_outputs, count, shift, stores);
          }
        }
      }
    }
  }
}

// Also where their sum is rounded, or more than the dtype holds.
template <class T>
void ExpectAverageOfEqualTerms(T greatest) {
  constexpr int64_t kCount = 3000;
  std::vector<T> values = Values<T>(/*seed=*/1, kCount);
  values[7] = greatest;
  std::vector<T> average(kCount);
  void* const output = average.data();
  for (size_t num_terms : {2, 3, 5, 7, 8, 16}) {
    const std::vector<const void*> inputs(num_terms, values.data());
    ReduceInOrder(kDTypeOf<T>, ReduceOp::kAvg, inputs, {&output, 1}, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_TRUE(SameElement(average[i], values[i]))
          << DTypeName(kDTypeOf<T>) << ", " << num_terms << " terms, element " << i;
    }
  }
}

TEST(ReductionTest, TheAverageOfEqualTermsIsTheirValue) {
  ExpectAverageOfEqualTerms(3e38f);
  ExpectAverageOfEqualTerms(1.5e308);
  ExpectAverageOfEqualTerms(BFloat16(3e38f));
  ExpectAverageOfEqualTerms(Float16(65504.0f));
}

// Every float through a sum of one: the vectors round to bf16 as BFloat16 does, halfway cases and NaNs too.
TEST(ReductionTest, Bf16SumsRoundToNearestEven) {
  constexpr int64_t kCount = 1 << 16;
  std::vector<BFloat16> a(kCount), b(kCount), sum(kCount);
  for (int64_t i = 0; i < kCount; ++i) a[i] = BFloat16::FromBits(static_cast<uint16_t>(i));
  for (float small : {0x1p-9f, 0x1.8p-9f, 0x1p-8f, -0x1p-9f, 3.0f}) {
    // In proportion to a, so that every kind of tie comes up.
    for (int64_t i = 0; i < kCount; ++i) b[i] = BFloat16(static_cast<float>(a[i]) * small);
    const void* const inputs[] = {a.data(), b.data()};
    void* const output = sum.data();
    ReduceInOrder(DType::kBF16, ReduceOp::kSum, inputs, {&output, 1}, kCount);
    for (int64_t i = 0; i < kCount; ++i) {
      const BFloat16 expected(static_cast<float>(a[i]) + static_cast<float>(b[i]));
      ASSERT_TRUE(SameElement(sum[i], expected)) << i << " and " << small << " of it";
    }
  }
}

TEST(ReductionTest, CopiesReachAllOutputsAndNothingElse) {
  for (int64_t count : {0, 1, 127, 128, 129, 255, 256, 257, 5000}) {
    for (int64_t shift : {0, 1, 17}) {
      for (int num_outputs : {1, 2, 5}) {
        for (Stores stores : {Stores::kCached, Stores::kStreaming}) {
          std::vector<uint8_t> input(count);
          for (int64_t i = 0; i < count; ++i) input[i] = static_cast<uint8_t>(i * 37);
          std::vector<Guarded<uint8_t>> outputs;
          outputs.reserve(num_outputs);
          for (int output = 0; output < num_outputs; ++output) outputs.emplace_back(count, shift);
          std::vector<void*> to;
          for (Guarded<uint8_t>& output : outputs) to.push_back(output.data());
          CopyToAll(input.data(), to, count, stores);
          for (Guarded<uint8_t>& output : outputs) {
            output.ExpectUntouchedAround();
            EXPECT_TRUE(std::equal(input.begin(), input.end(), output.data()))
                << count << " bytes, shift " << shift << ", " << num_outputs << " outputs";
          }
        }
      }
    }
  }
}

TEST(ReductionTest, OnlyWhatNoCacheHoldsIsStreamed) {
  EXPECT_EQ(StoresFor(1 << 20, 2), Stores::kCached);
  EXPECT_EQ(StoresFor(int64_t{1} << 40, 1), Stores::kStreaming);
  EXPECT_EQ(StoresFor(1 << 20, 1 << 20), Stores::kStreaming);
}

}  // namespace
}  // namespace weft
