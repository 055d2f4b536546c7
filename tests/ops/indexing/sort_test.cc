#include "ops/indexing/sort.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/indexing/top_k.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"
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

// Few different values, with NaN, infinities and both zeros among floating ones.
Tensor Awkward(DType dtype, const Shape& shape) {
  std::mt19937_64 random(shape.num_elements() + 1);
  std::vector<double> values(shape.num_elements());
  const double special[] = {kNan, kInf, -kInf, 0.0, -0.0, 1, -2};
  for (double& value : values) {
    const uint64_t pick = random() % 12;
    value = IsFloating(dtype) && pick < 7 ? special[pick] : static_cast<double>(random() % 9);
    if (dtype == DType::kI32 || dtype == DType::kI64) value -= 4;
  }
  return CastTensor(F64(shape, values), dtype, MakeCpuAllocator());
}

bool Less(double a, double b) { return b != b ? a == a : a < b; }

// The stable order of the elements `row` of `values`.
std::vector<int64_t> OrderOf(const std::vector<double>& values, const std::vector<int64_t>& row,
                             bool descending) {
  std::vector<int64_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    const double x = values[row[a]];
    const double y = values[row[b]];
    return descending ? Less(y, x) : Less(x, y);
  });
  return order;
}

const Shape kShapes[] = {{1}, {9}, {2, 5, 3}, {33, 20}, {3, 5000}, {0, 3}, {3, 0}};

// By what std::stable_sort says. The values must be the elements at those indices, bit by bit.
TEST(SortTest, MatchesAStableSortOfEveryDType) {
  for (DType dtype : kAllDTypes) {
    for (const Shape& shape : kShapes) {
      const Tensor x = Awkward(dtype, shape);
      const std::vector<double> values = x.ToVector<double>();
      for (int dim = 0; dim < shape.ndim(); ++dim) {
        const std::vector<std::vector<int64_t>> rows = ElementsAlong(shape, 1u << dim);
        for (bool descending : {false, true}) {
          std::vector<double> sorted(values.size());
          std::vector<int64_t> indices(values.size());
          for (const std::vector<int64_t>& row : rows) {
            const std::vector<int64_t> order = OrderOf(values, row, descending);
            for (size_t i = 0; i < row.size(); ++i) {
              sorted[row[i]] = values[row[order[i]]];
              indices[row[i]] = order[i];
            }
          }
          const std::vector<Tensor> y = RunAll(kSort, {x}, {.dim = dim, .descending = descending}, {}, 3);
          EXPECT_TRUE(SameBits(y[0], CastTensor(F64(shape, sorted), dtype, MakeCpuAllocator())));
          EXPECT_EQ(y[1].ToVector<int64_t>(), indices) << x.TypeString() << " dim " << dim;
        }
      }
    }
  }
}

TEST(SortTest, NanIsGreatestAndIntegersHaveTheirWholeRange) {
  const std::vector<Tensor> up = RunAll(kSort, {F64({5}, {kNan, 1, -kInf, kInf, kNan})}, {.dim = 0});
  EXPECT_THAT(up[1].ToVector<int64_t>(), ElementsAre(2, 1, 3, 0, 4));
  const std::vector<Tensor> down =
      RunAll(kSort, {F64({5}, {kNan, 1, -kInf, kInf, kNan})}, {.dim = 0, .descending = true});
  EXPECT_THAT(down[1].ToVector<int64_t>(), ElementsAre(0, 4, 3, 1, 2));
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  const Tensor x = Tensor::FromValues<int64_t>({4}, {0, kNone, kMin, -1});
  EXPECT_THAT(RunOp(kSort, {x}, {.dim = 0}).ToVector<int64_t>(), ElementsAre(kMin, -1, 0, kNone));
}

TEST(SortTest, GradientGoesBackWhereElementsStood) {
  const Tensor x = F64({2, 3}, {3, 1, 2, 4, 6, 5});
  const Tensor dy = F64({2, 3}, {10, 20, 30, 1, 2, 3});
  EXPECT_THAT(Backward(kSort, {x}, {dy, Tensor()}, {.dim = 1})[0].ToVector<double>(),
              ElementsAre(30, 10, 20, 1, 3, 2));
  EXPECT_THAT(Backward(kTopK, {x}, {F64({2, 1}, {7, 9}), Tensor()}, {.dim = 1, .k = 1})[0].ToVector<double>(),
              ElementsAre(7, 0, 0, 0, 9, 0));
}

TEST(TopKTest, IsTheBeginningOfTheSort) {
  for (DType dtype : kAllDTypes) {
    for (const Shape& shape : kShapes) {
      const Tensor x = Awkward(dtype, shape);
      for (int dim = 0; dim < shape.ndim(); ++dim) {
        for (int64_t k : {int64_t{0}, int64_t{1}, shape[dim] / 2, shape[dim]}) {
          if (k > shape[dim]) continue;
          for (bool largest : {true, false}) {
            const std::vector<Tensor> sorted = RunAll(kSort, {x}, {.dim = dim, .descending = largest});
            const std::vector<Tensor> best =
                RunAll(kTopK, {x}, {.dim = dim, .k = k, .largest = largest}, {}, 2);
            for (int i : {0, 1}) {
              const Tensor begin = CloneTensor(sorted[i].Slice(dim, 0, k), MakeCpuAllocator());
              EXPECT_TRUE(SameBits(best[i], begin)) << x.TypeString() << " dim " << dim << " k " << k;
            }
          }
        }
      }
    }
  }
}

// The steps of the decomposition, by hand: a piece with fewer than k, an empty one, and NaN both ways.
TEST(TopKTest, CandidatesOfPiecesHoldTheBest) {
  for (bool largest : {true, false}) {
    const TopKAttributes a = {.dim = 1, .k = 3, .largest = largest};
    const Tensor x =
        F64({2, 8}, {1, kNan, 3, 3, -kInf, 0, 3, kNan, -kInf, -kInf, -kInf, -kInf, -kInf, kNan, kNan, kNan});
    const Tensor values = Tensor::Empty(MakeCpuAllocator(), DType::kF64, {2, 9});
    const Tensor indices = Tensor::Empty(MakeCpuAllocator(), DType::kI64, {2, 9});
    int64_t at = 0;
    for (const Range& range : {Range{0, 6}, Range{6, 2}, Range{8, 0}}) {
      const std::vector<Tensor> best =
          RunSharded(kTopKCandidates, {SplitPiece(x, 1, range)}, {WholeBox({2, 3}), WholeBox({2, 3})}, a);
      CopyTensor(best[0], values.Slice(1, at, 3));
      CopyTensor(best[1], indices.Slice(1, at, 3));
      at += 3;
    }
    const std::vector<Tensor> merged = RunAll(kTopKMerge, {values, indices}, a);
    const std::vector<Tensor> whole = RunAll(kTopK, {x}, a);
    EXPECT_TRUE(SameBits(merged[0], whole[0])) << largest;
    EXPECT_TRUE(SameBits(merged[1], whole[1])) << largest;
  }
}

TEST(SelectionGradTest, RanksMakeOnlyWhatTheyHold) {
  const Tensor indices = Tensor::FromValues<int64_t>({2, 3}, {4, 0, 4, 1, 2, 3});
  const Tensor dy = F64({2, 3}, {1, 2, 4, 8, 16, 32});
  const SelectionAttributes a = {.dim = 1, .extent = 5};
  EXPECT_THAT(RunOp(kSelectionGrad, {indices, dy}, a).ToVector<double>(),
              ElementsAre(2, 0, 0, 0, 5, 0, 8, 16, 32, 0));
  const Tensor piece =
      RunSharded(kSelectionGrad, {WholePiece(indices), WholePiece(dy)}, {SplitBox({2, 5}, 1, {3, 2})}, a)[0];
  EXPECT_THAT(piece.ToVector<double>(), ElementsAre(0, 5, 32, 0));
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kSelectionGrad, {indices, dy}, {.dim = 1, .extent = 4});
            }),
            "selection_grad: index 4 is outside [0, 4)");
}

TEST(SortTest, RefusesMisuse) {
  const Tensor x = F64({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kSort, {x}, {.dim = 2}); }),
            "sort: there is no dim 2 in f64[2, 3]");
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kTopK, {x}, {.dim = 1, .k = 4}); }),
            "top_k: k of 4 is more than dim 1 of f64[2, 3] has");
  EXPECT_EQ(InvalidArgumentMessage([&] { RunOp(kTopK, {x}, {.dim = 1, .k = -1}); }),
            "top_k: k must not be negative, got -1");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kSelectionGrad, {x, x}, {.dim = 1, .extent = 4});
            }),
            "selection_grad: indices must be i64[2, 3], got f64[2, 3]");
}

}  // namespace
}  // namespace weft
