#include "ops/shape/reshape.h"

#include <numeric>
#include <string>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "runtime/device/allocator.h"
#include "tests/ops/single_device.h"

namespace weft {
namespace {

Tensor Iota(const Shape& shape) {
  std::vector<int32_t> values(shape.num_elements());
  std::iota(values.begin(), values.end(), 0);
  return Tensor::FromValues<int32_t>(shape, values);
}

std::string RuleText(const Shape& from, const Shape& to) {
  const ReshapeAttributes attributes = {to};
  return kReshape.Rule({{DType::kF32, from}}, &attributes);
}

TEST(ReshapeTest, IsAViewWhereTheStridesAllow) {
  const Tensor x = Iota({2, 3, 4});
  const Tensor y = RunOp(kReshape, {x}, {{6, 4}});
  EXPECT_EQ(y.data(), x.data());
  EXPECT_EQ(y.ToVector<int32_t>(), x.ToVector<int32_t>());
  // Rows apart, but the split of a dim is free.
  const Tensor columns = x.Slice(2, 1, 2);
  EXPECT_EQ(RunOp(kReshape, {columns}, {{2, 3, 1, 2}}).data(), columns.data());
}

TEST(ReshapeTest, CopiesWhereTheyDoNot) {
  const Tensor x = Iota({3, 2}).Transpose(0, 1);
  EXPECT_EQ(RunOp(kReshape, {x}, {{6}}).ToVector<int32_t>(), (std::vector<int32_t>{0, 2, 4, 1, 3, 5}));
}

TEST(ReshapeTest, LocalShapesFollowTheBox) {
  // [5, 2, 3] as [5, 6], split over dim 0: this rank holds rows 3 and 4.
  const Tensor x = Iota({5, 2, 3});
  const std::vector<Tensor> y =
      RunSharded(kReshape, {SplitPiece(x, 0, {3, 2})}, {SplitBox({5, 6}, 0, {3, 2})}, {{5, 6}});
  EXPECT_EQ(y[0].shape(), (Shape{2, 6}));
  EXPECT_EQ(y[0].ToVector<int32_t>(), x.Slice(0, 3, 2).ToVector<int32_t>());
}

TEST(ReshapeTest, UnchangedDimsMayBeSplitWhateverTheAxes) {
  EXPECT_EQ(RuleText({6, 4, 5}, {6, 20}), "f0 x1! x2! ~> f0 y1!");
  EXPECT_EQ(RuleText({6, 4}, {6, 1, 4}), "f0 f1 ~> f0 1 f1");
  EXPECT_EQ(RuleText({6, 4}, {2, 3, 4}), "x0! f1 ~> y0! y1! f1");
  EXPECT_EQ(RuleText({1, 6, 1}, {6}), "1 f1 1 ~> f1");
  EXPECT_EQ(RuleText({3, 4, 2}, {3, 2, 4}), "f0 x1! x2! ~> f0 y1! y2!");
  EXPECT_EQ(RuleText({2, 1, 3}, {6}), "x0! 1 x2! ~> y0!");
  EXPECT_EQ(RuleText({4, 6, 5}, {8, 3, 5}), "x0! x1! f2 ~> y0! y1! f2");
  EXPECT_EQ(RuleText({0, 4}, {0, 3}), "x0! x1! ~> y0! y1!");
  EXPECT_EQ(RuleText({0, 4}, {0, 4}), "f0 f1 ~> f0 f1");
  EXPECT_EQ(RuleText({1, 1}, {}), "1 1 ~> ()");
}

// A split of a merged dim: this rank holds rows 3 to 5 of [6, 4], elements 12 to 23 of [24].
TEST(ReshapeTest, MergedPiecesAreRuns) {
  const Tensor x = Iota({6, 4});
  const std::vector<Tensor> y =
      RunSharded(kReshape, {SplitPiece(x, 0, {3, 3})}, {SplitBox({24}, 0, {12, 12})}, {{24}});
  EXPECT_EQ(y[0].ToVector<int32_t>(), x.Slice(0, 3, 3).ToVector<int32_t>());
}

TEST(ReshapeTest, Empty) { EXPECT_EQ(RunOp(kReshape, {Iota({0, 4})}, {{2, 0}}).shape(), (Shape{2, 0})); }

TEST(ReshapeTest, Errors) {
  const ReshapeAttributes attributes = {{4, 2}};
  try {
    kReshape.Infer({{DType::kF32, {2, 3}}}, &attributes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "reshape: f32[2, 3] has 6 elements, so it cannot become [4, 2]");
  }
}

// Products that are the number of elements again modulo 2^64.
TEST(ReshapeTest, ExtentsBeyondInt64) {
  for (const auto& [from, to] : {std::pair(Shape{4}, Shape{5, 3689348814741910324}),
                                 std::pair(Shape{0}, Shape{int64_t{1} << 32, int64_t{1} << 32})}) {
    const ReshapeAttributes attributes = {to};
    EXPECT_THROW(kReshape.Infer({{DType::kF32, from}}, &attributes), Error) << to.ToString();
    EXPECT_THROW(Tensor::Empty(MakeCpuAllocator(), DType::kF32, from).Reshape(to), Error) << to.ToString();
  }
}

}  // namespace
}  // namespace weft
