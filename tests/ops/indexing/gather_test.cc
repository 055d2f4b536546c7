// Gather and scatter, by a block of indices (ops/indexing/gather.h) and by a list of them
// (ops/indexing/index_select.h).

#include "ops/indexing/gather.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/indexing/index_select.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

// [o, n, k], by single elements.
struct Block {
  int64_t o = 1;
  int64_t n = 1;
  int64_t k = 1;
  std::vector<double> values;

  double& at(int64_t i, int64_t j, int64_t l) { return values[(i * n + j) * k + l]; }
  Shape shape() const { return {o, n, k}; }
};

Block RandomBlock(int64_t o, int64_t n, int64_t k, int low, int high, std::mt19937_64& random) {
  Block block = {o, n, k, std::vector<double>(o * n * k)};
  for (double& value : block.values) value = low + static_cast<int>(random() % (high - low));
  return block;
}

Tensor As(DType dtype, const Shape& shape, const std::vector<double>& values) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}
Tensor As(DType dtype, const Block& block) { return As(dtype, block.shape(), block.values); }

constexpr DType kSummed[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16, DType::kI32, DType::kI64};

// The sizes: none, one, few, and more columns than a task takes.
TEST(GatherTest, GatherAndScatterSumAgainstLoops) {
  std::mt19937_64 random(3);
  for (const Shape& s : {Shape{2, 5, 3}, Shape{1, 1, 1}, Shape{3, 4, 65}, Shape{4, 7, 1}, Shape{2, 3, 0}}) {
    for (int64_t m : {0, 1, 6}) {
      Block x = RandomBlock(s[0], s[1], s[2], -50, 50, random);
      Block index = RandomBlock(s[0], m, s[2], 0, static_cast<int>(s[1]), random);
      Block src = RandomBlock(s[0], m, s[2], -9, 9, random);
      Block y = {s[0], m, s[2], std::vector<double>(s[0] * m * s[2])};
      Block sum = {s[0], s[1], s[2], std::vector<double>(x.values.size(), 0)};
      for (int64_t i = 0; i < s[0]; ++i) {
        for (int64_t j = 0; j < m; ++j) {
          for (int64_t k = 0; k < s[2]; ++k) {
            const auto slot = static_cast<int64_t>(index.at(i, j, k));
            y.at(i, j, k) = x.at(i, slot, k);
            sum.at(i, slot, k) += src.at(i, j, k);
          }
        }
      }
      for (DType dtype : kSummed) {
        const DType wide = dtype == DType::kF32 ? DType::kI32 : DType::kI64;
        EXPECT_TRUE(SameBits(RunOp(kGather, {As(dtype, x), As(wide, index)}, {.dim = 1}), As(dtype, y)));
        EXPECT_TRUE(
            SameBits(RunOp(kScatterSum, {As(wide, index), As(dtype, src)}, {.dim = 1, .extent = s[1]}),
                     As(dtype, sum)))
            << s << " " << m << " " << dtype;
      }
    }
  }
}

TEST(GatherTest, IndexSelectAndAddAgainstLoops) {
  std::mt19937_64 random(5);
  for (const Shape& s : {Shape{2, 5, 3}, Shape{1, 1, 1}, Shape{1, 4, 130}, Shape{3, 7, 1}, Shape{0, 3, 2}}) {
    for (int64_t m : {0, 1, 6}) {
      Block x = RandomBlock(s[0], s[1], s[2], -50, 50, random);
      const Block index = RandomBlock(1, m, 1, 0, static_cast<int>(s[1]), random);
      Block src = RandomBlock(s[0], m, s[2], -9, 9, random);
      Block y = {s[0], m, s[2], std::vector<double>(s[0] * m * s[2])};
      Block sum = {s[0], s[1], s[2], std::vector<double>(x.values.size(), 0)};
      for (int64_t i = 0; i < s[0]; ++i) {
        for (int64_t j = 0; j < m; ++j) {
          for (int64_t k = 0; k < s[2]; ++k) {
            const auto slot = static_cast<int64_t>(index.values[j]);
            y.at(i, j, k) = x.at(i, slot, k);
            sum.at(i, slot, k) += src.at(i, j, k);
          }
        }
      }
      for (DType dtype : kSummed) {
        const Tensor list = As(DType::kI64, {m}, index.values);
        EXPECT_TRUE(SameBits(RunOp(kIndexSelect, {As(dtype, x), list}, {.dim = 1}), As(dtype, y)));
        EXPECT_TRUE(
            SameBits(RunOp(kIndexAdd, {list, As(dtype, src)}, {.dim = 1, .extent = s[1]}), As(dtype, sum)))
            << s << " " << m << " " << dtype;
      }
    }
  }
}

TEST(GatherTest, IndexZeroLeavesTheRest) {
  const float nan = std::nanf("");
  const Tensor x = Tensor::FromValues<float>({2, 3}, {1, nan, 3, 4, 5, 6});
  const Tensor index = Tensor::FromValues<int64_t>({2}, {1, 0});
  EXPECT_EQ(RunOp(kIndexZero, {x, index}, {.dim = 1}).ToVector<float>(),
            (std::vector<float>{0, 0, 3, 0, 0, 6}));
}

// A sum of many halves is rounded once, and in f32 taken in the order of the list, on any number of threads.
TEST(GatherTest, SumsAreOrderedAndRoundedOnce) {
  const int64_t m = 3000;
  std::vector<double> ones(m, 1);
  std::vector<int64_t> zeros(m, 0);
  const Tensor index = Tensor::FromValues<int64_t>({m}, zeros);
  // bf16 counts no further than 256.
  const Tensor sum = RunOp(kIndexAdd, {index, As(DType::kBF16, {m}, ones)}, {.dim = 0, .extent = 1});
  EXPECT_TRUE(SameBits(sum, As(DType::kBF16, {1}, {3000})));

  std::mt19937_64 random(9);
  std::vector<float> terms(m * 200);
  for (float& term : terms) term = static_cast<float>(static_cast<double>(random() % 2000001) * 1e-6 - 1);
  std::vector<int64_t> slots(m);
  for (int64_t& slot : slots) slot = static_cast<int64_t>(random() % 5);
  std::vector<float> expected(5 * 200, 0.0f);
  for (int64_t j = 0; j < m; ++j) {
    for (int64_t k = 0; k < 200; ++k) expected[slots[j] * 200 + k] += terms[j * 200 + k];
  }
  for (int threads : {1, 2}) {
    const Tensor y = RunOp(
        kIndexAdd, {Tensor::FromValues<int64_t>({m}, slots), Tensor::FromValues<float>({m, 200}, terms)},
        {.dim = 0, .extent = 5}, {}, threads);
    EXPECT_EQ(y.ToVector<float>(), expected) << threads;
  }
}

// Terms of an owner-computed gather keep -0.0 and inf.
TEST(GatherTest, TermsOfASplitDimAddUpToTheSameBits) {
  const Tensor x = Tensor::FromValues<float>({3}, {-0.0f, INFINITY, -2});
  const Tensor index = Tensor::FromValues<int64_t>({4}, {2, 0, 1, 0});
  const auto check = [&](auto& op) {
    const Tensor low =
        RunSharded(op, {SplitPiece(x, 0, {0, 2}), WholePiece(index)}, {WholeBox({4})}, {.dim = 0})[0];
    const Tensor high =
        RunSharded(op, {SplitPiece(x, 0, {2, 1}), WholePiece(index)}, {WholeBox({4})}, {.dim = 0})[0];
    AccumulateTensor(high, low, ReduceOp::kSum);
    EXPECT_TRUE(SameBits(low, RunOp(op, {x, index}, {.dim = 0}))) << op.name();
  };
  check(kGather);
  check(kIndexSelect);
}

TEST(GatherTest, IndicesOutsideAreNamedByTheirGlobalPlace) {
  const Tensor x = Tensor::FromValues<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor block = Tensor::FromValues<int64_t>({2, 2}, {0, 2, 3, 0});
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kGather, {x, block}, {.dim = 1});
            }),
            "gather: index 3 at [1, 0] is outside [0, 3)");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunSharded(kGather, {SplitPiece(x, 0, {1, 1}), SplitPiece(block, 0, {1, 1})},
                         {SplitBox({2, 2}, 0, {1, 1})}, {.dim = 1});
            }),
            "gather: index 3 at [1, 0] is outside [0, 3)");
  const Tensor list = Tensor::FromValues<int64_t>({2}, {0, -1});
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kIndexSelect, {x, list}, {.dim = 0});
            }),
            "index_select: index -1 at [1] is outside [0, 2)");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kIndexAdd, {list, x}, {.dim = 0, .extent = 4});
            }),
            "index_add: index -1 at [1] is outside [0, 4)");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kScatterSum, {block, x.Slice(1, 0, 2)}, {.dim = 0, .extent = 3});
            }),
            "scatter_sum: index 3 at [1, 0] is outside [0, 3)");
  const Tensor twice = Tensor::FromValues<int64_t>({3}, {1, 0, 1});
  EXPECT_EQ(InvalidArgumentMessage([&] {
              RunOp(kIndexZero, {x, twice}, {.dim = 0});
            }),
            "index_zero: index 1 stands at both [0] and [2]");
}

TEST(GatherTest, TypesThatDoNotFit) {
  const TensorType x = {DType::kF32, {2, 3}};
  const auto gather = [&](const TensorType& index, int dim) {
    const GatherAttributes a = {dim};
    return InvalidArgumentMessage([&] { kGather.Infer({x, index}, &a); });
  };
  EXPECT_EQ(gather({DType::kF32, {2, 3}}, 0), "gather: the index must be i32 or i64, got f32[2, 3]");
  EXPECT_EQ(gather({DType::kI64, {2, 4}}, 0),
            "gather: the index must have the shape of x but for dim 0; index is i64[2, 4], x is f32[2, 3]");
  EXPECT_EQ(gather({DType::kI64, {2, 3}}, 2), "gather: there is no dim 2 in f32[2, 3]");
  const ScatterSumAttributes scatter = {0, 4};
  EXPECT_EQ(InvalidArgumentMessage([&] {
              kScatterSum.Infer({{DType::kI64, {1, 3}}, x}, &scatter);
            }),
            "scatter_sum: the index must have the shape of src; index is i64[1, 3], src is f32[2, 3]");
  EXPECT_EQ(InvalidArgumentMessage([&] {
              kScatterSum.Infer({{DType::kI64, {2}}, {DType::kBool, {2}}}, &scatter);
            }),
            "scatter_sum: cannot add bool[2]");
  const IndexAttributes select = {1};
  EXPECT_EQ(InvalidArgumentMessage([&] {
              kIndexSelect.Infer({x, {DType::kI64, {2, 2}}}, &select);
            }),
            "index_select: the index must be i32 or i64, of one dim, got i64[2, 2]");
  const IndexAddAttributes add = {1, 4};
  EXPECT_EQ(InvalidArgumentMessage([&] {
              kIndexAdd.Infer({{DType::kI64, {2}}, x}, &add);
            }),
            "index_add: expected an index for each of the 3 along dim 1 of f32[2, 3], got i64[2]");
}

}  // namespace
}  // namespace weft
