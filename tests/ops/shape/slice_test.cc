#include "ops/shape/slice.h"

#include <numeric>
#include <string>

#include "gtest/gtest.h"
#include "tests/ops/single_device.h"

namespace weft {
namespace {

Tensor Iota(const Shape& shape) {
  std::vector<float> values(shape.num_elements());
  std::iota(values.begin(), values.end(), 1.0f);
  return Tensor::FromValues<float>(shape, values);
}

TEST(SliceTest, IsAView) {
  const Tensor x = Iota({2, 4});
  const Tensor y = RunOp(kSlice, {x}, {.dim = 1, .start = 1, .length = 2});
  EXPECT_EQ(y.ToVector<float>(), (std::vector<float>{2, 3, 6, 7}));
  EXPECT_EQ(y.data<float>(), x.data<float>() + 1);
}

TEST(SliceTest, EmptyRanges) {
  EXPECT_EQ(RunOp(kSlice, {Iota({2, 4})}, {.dim = 1, .start = 4, .length = 0}).shape(), (Shape{2, 0}));
  EXPECT_EQ(RunOp(kSliceGrad, {Iota({0})}, {.dim = 0, .start = 1, .extent = 2}).ToVector<float>(),
            (std::vector<float>{0, 0}));
}

TEST(SliceTest, GradientIsPaddedWithZeros) {
  const Tensor dy = Iota({2, 2}).Transpose(0, 1);
  EXPECT_EQ(RunOp(kSliceGrad, {dy}, {.dim = 1, .start = 1, .extent = 4}).ToVector<float>(),
            (std::vector<float>{0, 1, 3, 0, 0, 2, 4, 0}));
}

// Large enough for several tasks.
TEST(SliceTest, LargeGradient) {
  const Tensor dy = Iota({300, 1000});
  const Tensor dx = RunOp(kSliceGrad, {dy}, {.dim = 0, .start = 2, .extent = 304}, {}, /*num_threads=*/2);
  EXPECT_EQ(dx.Slice(0, 2, 300).ToVector<float>(), dy.ToVector<float>());
  EXPECT_EQ(dx.Slice(0, 0, 2).ToVector<float>(), std::vector<float>(2000, 0.0f));
  EXPECT_EQ(dx.Slice(0, 302, 2).ToVector<float>(), std::vector<float>(2000, 0.0f));
}

TEST(SliceTest, WhereTheSlicedDimIsSplitItsOwnersGiveIt) {
  const SliceAttributes part = {.dim = 1, .start = 0, .length = 3};
  const SliceAttributes all = {.dim = 1, .start = 0, .length = 4};
  EXPECT_EQ(kSlice.Rule({{DType::kF32, {2, 4, 5}}}, &part), "f0 s@ f2 -> f0 t f2");
  EXPECT_EQ(kSlice.Rule({{DType::kF32, {2, 4, 5}}}, &all), "f0 s f2 -> f0 s f2");
}

template <class A>
std::string InferError(const Op<A>& op, const Shape& x, const A& a) {
  try {
    op.Infer({{DType::kF32, x}}, &a);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(SliceTest, Errors) {
  EXPECT_EQ(InferError(kSlice, {2, 4}, {.dim = 1, .start = 2, .length = 3}),
            "slice: 3 elements from 2 do not lie within dim 1 of f32[2, 4]");
  EXPECT_EQ(InferError(kSlice, {2, 4}, {.dim = 2, .start = 0, .length = 1}),
            "slice: there is no dim 2 in f32[2, 4]");
  EXPECT_EQ(InferError(kSliceGrad, {2, 4}, {.dim = 1, .start = 2, .extent = 5}),
            "slice_grad: dim 1 of f32[2, 4] does not fit into an extent of 5 from 2");
}

}  // namespace
}  // namespace weft
