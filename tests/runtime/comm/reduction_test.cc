#include "runtime/comm/reduction.h"

#include <cmath>
#include <limits>
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
        ReduceInOrder(DType::kF32, ReduceOp::kSum, pointers, inputs[place].data(), count);
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
  ReduceInOrder(kDTypeOf<T>, op, pointers, &result, 1);
  return result;
}

TEST(ReductionTest, IntegersCombineIn64BitsAndWrap) {
  EXPECT_EQ(ReduceScalars<uint8_t>(ReduceOp::kSum, {200, 100}), 44);
  EXPECT_EQ(ReduceScalars<uint8_t>(ReduceOp::kAvg, {200, 100}), 150);
  EXPECT_EQ(ReduceScalars<int32_t>(ReduceOp::kAvg, {-3, -4}), -3);  // toward zero
  EXPECT_EQ(ReduceScalars<int32_t>(ReduceOp::kAvg, {INT32_MAX, INT32_MAX, INT32_MAX}), INT32_MAX);
  EXPECT_EQ(ReduceScalars<int64_t>(ReduceOp::kSum, {INT64_MAX, 1}), INT64_MIN);
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

}  // namespace
}  // namespace weft
