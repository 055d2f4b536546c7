#include "runtime/tensor/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <vector>

#include "absl/hash/hash_testing.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape().num_elements(), 1);
  EXPECT_EQ(Shape({5}).num_elements(), 5);
  EXPECT_EQ(Shape({2, 3, 4}).num_elements(), 24);
  EXPECT_EQ(Shape({2, 0, 4}).num_elements(), 0);
}

TEST(Shape, InsertsAndRemoves) {
  Shape shape = {2, 3};
  shape.push_back(5);
  shape.Insert(0, 7);
  shape.Insert(2, 9);
  EXPECT_THAT(shape.dims(), ElementsAre(7, 2, 9, 3, 5));
  shape.Remove(4);
  shape.Remove(0);
  EXPECT_THAT(shape.dims(), ElementsAre(2, 9, 3));
}

// What was removed must not linger in == or in the hash.
TEST(Shape, EqualityAndHashSeeDimsAlone) {
  Shape removed = {2, 3, 4};
  removed.Remove(1);
  EXPECT_EQ(removed, Shape({2, 4}));
  EXPECT_NE(Shape({2}), Shape({2, 0}));
  EXPECT_NE(Shape(), Shape({0}));
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(
      {Shape(), Shape({0}), Shape({2, 4}), removed, Shape({4, 2}), Shape({2, 4, 1})}));
}

TEST(Shape, HoldsEightDimsAndNoMore) {
  Shape shape;
  for (int i = 0; i < 8; ++i) shape.push_back(i);
  EXPECT_EQ(shape.ToString(), "[0, 1, 2, 3, 4, 5, 6, 7]");
  EXPECT_THAT(MessageOf([&] { shape.push_back(8); }), HasSubstr("at most 8 dims"));
  EXPECT_THAT(MessageOf([] { Shape(std::vector<int64_t>(9, 1)); }), HasSubstr("at most 8 dims, got 9"));
  EXPECT_THAT(MessageOf([] { Shape({1}).Remove(1); }), HasSubstr("cannot remove dim 1 of 1"));
  EXPECT_THAT(MessageOf([] { Shape({1}).Insert(2, 1); }), HasSubstr("before dim 2 of 1"));
}

TEST(Shape, Prints) {
  std::ostringstream out;
  out << Shape() << Shape({2, 3});
  EXPECT_EQ(out.str(), "[][2, 3]");
}

TEST(ContiguousStrides, AreProductsOfInnerExtents) {
  EXPECT_EQ(ContiguousStrides({}), Shape());
  EXPECT_EQ(ContiguousStrides({2, 3, 4}), Shape({12, 4, 1}));
  EXPECT_EQ(ContiguousStrides({2, 0, 4}), Shape({0, 4, 1}));
}

TEST(NumElements, OfMoreThanInt64CanCount) {
  constexpr int64_t kMany = int64_t{1} << 32;
  EXPECT_EQ(Shape({kMany, kMany}).num_elements(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Shape({5, 3689348814741910324}).num_elements(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Shape({kMany, kMany, 0}).num_elements(), 0);
}

TEST(NormalizeDim, CountsFromTheEnd) {
  EXPECT_EQ(NormalizeDim(0, 3, "op"), 0);
  EXPECT_EQ(NormalizeDim(2, 3, "op"), 2);
  EXPECT_EQ(NormalizeDim(-1, 3, "op"), 2);
  EXPECT_EQ(NormalizeDim(-3, 3, "op"), 0);
  for (int dim : {3, -4}) {
    EXPECT_EQ(MessageOf([&] { NormalizeDim(dim, 3, "softmax"); }),
              absl::StrCat("softmax: dim ", dim, " is out of range for a tensor of 3 dims"));
  }
  EXPECT_THAT(MessageOf([] { NormalizeDim(0, 0, "op"); }), HasSubstr("0 dims"));
}

}  // namespace
}  // namespace weft
