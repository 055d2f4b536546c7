#include "ops/reduce/argmax.h"

#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tools/rules/sample_tensors.h"

namespace weft {
namespace {

using ::testing::ElementsAre;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

Tensor F64(const Shape& shape, const std::vector<double>& values) {
  return Tensor::FromValues<double>(shape, values);
}

std::vector<int64_t> Indices(const Op<ArgAttributes>& op, const Tensor& x, const ArgAttributes& attributes,
                             int num_threads = 1) {
  return RunOp(op, {x}, attributes, {}, num_threads).ToVector<int64_t>();
}

// Rows in one part and several, columns in one tile and several.
TEST(ArgMaxTest, MatchesALoopOfEveryDType) {
  for (DType dtype : kAllDTypes) {
    for (const Shape& shape :
         {Shape{1}, Shape{7}, Shape{2, 5, 3}, Shape{40, 33}, Shape{2, 70001}, Shape{0, 3}}) {
      // Few values, so that many are equal.
      std::mt19937_64 random(shape.num_elements());
      const Tensor x = RandomTensor({{dtype, shape}, dtype == DType::kBool ? 0.0 : 1.0, 6}, random);
      const std::vector<double> values = x.ToVector<double>();
      for (int dim = 0; dim < shape.ndim(); ++dim) {
        if (shape[dim] == 0) continue;
        std::vector<int64_t> largest, smallest;
        for (const std::vector<int64_t>& row : ElementsAlong(shape, 1u << dim)) {
          size_t max = 0, min = 0;
          for (size_t i = 0; i < row.size(); ++i) {
            if (values[row[i]] > values[row[max]]) max = i;
            if (values[row[i]] < values[row[min]]) min = i;
          }
          largest.push_back(static_cast<int64_t>(max));
          smallest.push_back(static_cast<int64_t>(min));
        }
        for (int num_threads : {1, 3}) {
          EXPECT_EQ(Indices(kArgMax, x, {.dim = dim}, num_threads), largest) << x.TypeString() << " " << dim;
          EXPECT_EQ(Indices(kArgMin, x, {.dim = dim}, num_threads), smallest) << x.TypeString() << " " << dim;
        }
      }
    }
  }
}

TEST(ArgMaxTest, NanWinsAndOfEqualsTheFirst) {
  EXPECT_THAT(Indices(kArgMax, F64({5}, {1, kNan, kInf, kNan, 2}), {.dim = 0}), ElementsAre(1));
  EXPECT_THAT(Indices(kArgMin, F64({5}, {1, -kInf, 3, kNan, kNan}), {.dim = 0}), ElementsAre(3));
  EXPECT_THAT(Indices(kArgMax, F64({3}, {-kInf, -kInf, -kInf}), {.dim = 0}), ElementsAre(0));
  EXPECT_THAT(Indices(kArgMax, F64({3}, {-0.0, 0.0, -1}), {.dim = 0}), ElementsAre(0));
  EXPECT_THAT(Indices(kArgMin, F64({3}, {1, 0.0, -0.0}), {.dim = 0}), ElementsAre(1));
  // The NaN far behind, in a part of its own.
  std::vector<double> values(100000, 7);
  values[99999] = kNan;
  EXPECT_THAT(Indices(kArgMax, F64({100000}, values), {.dim = 0}), ElementsAre(99999));
}

TEST(ArgMaxTest, KeepsDimsAndTakesAnyStrides) {
  const Tensor x = F64({2, 3}, {1, 5, 2, 9, 0, 9});
  EXPECT_EQ(RunOp(kArgMax, {x}, {.dim = 1, .keepdims = true}).TypeString(), "i64[2, 1]");
  EXPECT_EQ(RunOp(kArgMax, {x}, {.dim = 0}).TypeString(), "i64[3]");
  EXPECT_THAT(Indices(kArgMax, x.Transpose(0, 1), {.dim = 0}), ElementsAre(1, 0));
  EXPECT_THAT(Indices(kArgMin, x.Slice(1, 1, 2), {.dim = 1}), ElementsAre(1, 0));
}

TEST(ArgMaxTest, IndicesOfAPieceAreThoseOfTheWhole) {
  const Tensor x = F64({2, 5}, {3, 1, 3, kNan, 4, 2, 2, 2, 2, 2});
  const Tensor value = F64({2}, {3, kNan});
  const auto indices = [&](Range range) {
    return RunSharded(kIndexOf, {SplitPiece(x, 1, range), WholePiece(value)}, {WholeBox({2})}, {.dim = 1})[0]
        .ToVector<int64_t>();
  };
  EXPECT_THAT(indices({0, 5}), ElementsAre(0, kNone));
  EXPECT_THAT(indices({1, 3}), ElementsAre(2, kNone));
  EXPECT_THAT(indices({3, 2}), ElementsAre(kNone, kNone));
  EXPECT_THAT(indices({5, 0}), ElementsAre(kNone, kNone));
  EXPECT_THAT(RunOp(kIndexOf, {x, F64({2}, {kNan, 2})}, {.dim = 1}).ToVector<int64_t>(), ElementsAre(3, 0));
}

TEST(ArgMaxTest, RefusesMisuse) {
  EXPECT_EQ(InvalidArgumentMessage([] {
              Indices(kArgMax, F64({2, 0}, {}), {.dim = 1});
            }),
            "argmax: dim 1 of f64[2, 0] is empty and has no extremum");
  EXPECT_EQ(InvalidArgumentMessage([] { Indices(kArgMin, F64({}, {1}), {.dim = 0}); }),
            "argmin: there is no dim 0 in f64[]");
  EXPECT_EQ(InvalidArgumentMessage([] {
              RunOp(kIndexOf, {F64({2}, {1, 2}), F64({2}, {1, 2})}, {.dim = 0});
            }),
            "index_of: value must be f64[], got f64[2]");
}

}  // namespace
}  // namespace weft
