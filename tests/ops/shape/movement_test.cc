// Ops that move elements along dims: split, pad, flip, roll, and the triangles, which drop some.

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/elementwise/triangle.h"
#include "ops/shape/concat.h"
#include "ops/shape/flip_roll.h"
#include "ops/shape/pad.h"
#include "ops/shape/slice.h"
#include "ops/shape/split.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using Index = std::vector<int64_t>;

Tensor Iota(const Shape& shape, DType dtype = DType::kI32) {
  std::vector<double> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 120 + 1);
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

// y[index] = value(index), one element after another.
std::vector<int32_t> Elements(const Shape& shape, const std::function<int64_t(const Index&)>& value) {
  std::vector<int32_t> values;
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    Index index(shape.ndim());
    int64_t rest = i;
    for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
      index[dim] = rest % shape[dim];
      rest /= shape[dim];
    }
    values.push_back(static_cast<int32_t>(value(index)));
  }
  return values;
}

int64_t At(const Tensor& x, const Index& index) {
  int64_t place = 0;
  for (int dim = 0; dim < x.ndim(); ++dim) place = place * x.shape()[dim] + index[dim];
  return x.ToVector<int32_t>()[place];
}

TEST(MovementTest, SplitCutsIntoViews) {
  const Tensor x = Iota({2, 5});
  const std::vector<Tensor> parts = RunAll(kSplit, {x}, {.dim = 1, .sizes = {2, 0, 3}});
  EXPECT_EQ(parts[0].ToVector<int32_t>(), (std::vector<int32_t>{1, 2, 6, 7}));
  EXPECT_EQ(parts[1].shape(), (Shape{2, 0}));
  EXPECT_EQ(parts[2].ToVector<int32_t>(), (std::vector<int32_t>{3, 4, 5, 8, 9, 10}));
  EXPECT_EQ(parts[2].data<int32_t>(), x.data<int32_t>() + 2);
}

TEST(MovementTest, PadPutsTheValueAround) {
  for (const Shape& shape : {Shape{3, 2, 4}, Shape{1, 1, 1}, Shape{2, 0, 3}}) {
    const PadAttributes a = {.before = {1, 0, 2}, .after = {0, 3, 1}};
    const Tensor x = Iota(shape);
    const Shape padded = {shape[0] + 1, shape[1] + 3, shape[2] + 3};
    const auto expected = [&](int64_t value) {
      return Elements(padded, [&](const Index& i) {
        const Index from = {i[0] - 1, i[1], i[2] - 2};
        for (int dim = 0; dim < 3; ++dim) {
          if (from[dim] < 0 || from[dim] >= shape[dim]) return value;
        }
        return At(x, from);
      });
    };
    EXPECT_EQ(RunOp(kPad, {x}, a).ToVector<int32_t>(), expected(0)) << shape;
    EXPECT_EQ(RunOp(kPadValue, {x}, a, {.value = -7}).ToVector<int32_t>(), expected(-7)) << shape;
  }
}

TEST(MovementTest, FlipReversesAndRollTurns) {
  const Shape shape = {3, 4, 5};
  const Tensor x = Iota(shape);
  EXPECT_EQ(RunOp(kFlip, {x}, {.dims = {0, 2}}).ToVector<int32_t>(), Elements(shape, [&](const Index& i) {
              return At(x, {2 - i[0], i[1], 4 - i[2]});
            }));
  EXPECT_EQ(RunOp(kFlip, {x}, {.dims = {1}}).ToVector<int32_t>(), Elements(shape, [&](const Index& i) {
              return At(x, {i[0], 3 - i[1], i[2]});
            }));
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  for (int64_t shift : {int64_t{0}, int64_t{1}, int64_t{-1}, int64_t{4}, int64_t{11}, int64_t{-9}, kLeast}) {
    const int64_t steps = ((shift % 4) + 4) % 4;
    EXPECT_EQ(RunOp(kRoll, {x}, {.dim = 1, .shift = shift}).ToVector<int32_t>(),
              Elements(shape,
                       [&](const Index& i) {
                         return At(x, {i[0], (i[1] + 4 - steps) % 4, i[2]});
                       }))
        << shift;
  }
  EXPECT_EQ(RunOp(kRoll, {Iota({0, 2})}, {.dim = 0, .shift = 3}).shape(), (Shape{0, 2}));
  EXPECT_EQ(RunOp(kFlip, {Iota({2, 0})}, {.dims = {0, 1}}).shape(), (Shape{2, 0}));
}

TEST(MovementTest, TrianglesKeepOneSideOfADiagonal) {
  for (const Shape& shape : {Shape{4, 4}, Shape{2, 3, 5}, Shape{5, 2}, Shape{1, 1}, Shape{3, 0}}) {
    const Tensor x = Iota(shape);
    const int rows = shape.ndim() - 2;
    for (int64_t k = -6; k <= 6; ++k) {
      EXPECT_EQ(RunOp(kTriangle, {x}, {.lower = true, .diagonal = k}).ToVector<int32_t>(),
                Elements(shape, [&](const Index& i) { return i[rows + 1] - i[rows] <= k ? At(x, i) : 0; }))
          << shape << " " << k;
      EXPECT_EQ(RunOp(kTriangle, {x}, {.lower = false, .diagonal = k}).ToVector<int32_t>(),
                Elements(shape, [&](const Index& i) { return i[rows + 1] - i[rows] >= k ? At(x, i) : 0; }))
          << shape << " " << k;
    }
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    EXPECT_TRUE(SameBits(RunOp(kTriangle, {x}, {.lower = true, .diagonal = kMost}), x));
    EXPECT_TRUE(SameBits(RunOp(kTriangle, {x}, {.lower = false, .diagonal = -kMost - 1}), x));
  }
  // What is dropped is 0, whatever it was.
  const float nan = std::nanf("");
  const Tensor x = Tensor::FromValues<float>({2, 2}, {1, nan, 2, nan});
  const std::vector<float> lower = RunOp(kTriangle, {x}, {.lower = true}).ToVector<float>();
  EXPECT_EQ(lower[1], 0);
  EXPECT_TRUE(std::isnan(lower[3]));
}

// Strided operands, every dtype, and enough elements for several tasks: the same as on a dense i32.
TEST(MovementTest, StridesDtypesAndThreadsDecideNothing) {
  for (DType dtype : kAllDTypes) {
    const Tensor x = Iota({300, 7, 41}, dtype).Transpose(0, 2);  // [41, 7, 300]
    const Tensor dense = CloneTensor(x, MakeCpuAllocator());
    const auto same = [&](auto& op, const auto& attributes) {
      const Tensor expected = RunOp(op, {dense}, attributes);
      EXPECT_TRUE(SameBits(RunOp(op, {x}, attributes), expected)) << op.name() << " " << dtype;
      EXPECT_TRUE(SameBits(RunOp(op, {x}, attributes, {}, /*num_threads=*/2), expected))
          << op.name() << " " << dtype;
    };
    same(kPad, PadAttributes{.before = {0, 1, 0}, .after = {2, 0, 3}});
    same(kFlip, FlipAttributes{.dims = {0, 2}});
    same(kRoll, RollAttributes{.dim = 0, .shift = 3});
    same(kTriangle, TriangleAttributes{.lower = false, .diagonal = 5});
    const Tensor flipped = RunOp(kFlip, {x}, {.dims = {2}});
    EXPECT_TRUE(SameBits(RunOp(kFlip, {flipped}, {.dims = {2}}), dense)) << dtype;
  }
}

// What a rank gives where another one owns changes nothing that it is added to: -0.0 stays -0.0, and what
// nobody owns is a positive zero, once.
TEST(MovementTest, TermsOfASplitDimAddUpToTheSameBits) {
  const Tensor x = Tensor::FromValues<float>({3}, {-0.0f, INFINITY, -2});
  const auto pieces = [&](auto& op, const auto& attributes, int64_t extent) {
    std::vector<Tensor> terms;
    for (const Range& range : {Range{0, 2}, Range{2, 1}}) {
      terms.push_back(RunSharded(op, {SplitPiece(x, 0, range)}, {WholeBox({extent})}, attributes)[0]);
    }
    const Tensor sum = CloneTensor(terms[0], MakeCpuAllocator());
    AccumulateTensor(terms[1], sum, ReduceOp::kSum);
    EXPECT_TRUE(SameBits(sum, RunOp(op, {x}, attributes))) << op.name();
  };
  pieces(kSlice, SliceAttributes{.dim = 0, .start = 0, .length = 2}, 2);
  pieces(kSliceGrad, SliceGradAttributes{.dim = 0, .start = 1, .extent = 5}, 5);
  pieces(kPad, PadAttributes{.before = {1}, .after = {2}}, 6);
  pieces(kFlip, FlipAttributes{.dims = {0}}, 3);
  pieces(kRoll, RollAttributes{.dim = 0, .shift = 1}, 3);
  pieces(kConcat, ConcatAttributes{.dim = 0}, 3);
}

template <class A, class R>
std::string InferError(const Op<A, R>& op, const TensorType& x, const A& a) {
  return InvalidArgumentMessage([&] { op.Infer({x}, &a); });
}

TEST(MovementTest, Errors) {
  const TensorType x = {DType::kF32, {2, 4}};
  EXPECT_EQ(InferError(kSplit, x, {.dim = 1, .sizes = {1, 2}}),
            "split: expected sizes that add up to 4, dim 1 of f32[2, 4], got {1, 2}");
  EXPECT_EQ(InferError(kSplit, x, {.dim = 1, .sizes = {5, -1}}),
            "split: expected sizes that add up to 4, dim 1 of f32[2, 4], got {5, -1}");
  EXPECT_EQ(InferError(kSplit, x, {.dim = 2, .sizes = {1}}), "split: there is no dim 2 in f32[2, 4]");
  EXPECT_EQ(InferError(kPad, x, {.before = {1}, .after = {0, 0}}),
            "pad: expected 2 widths before and after f32[2, 4], none negative, got [1] and [0, 0]");
  EXPECT_EQ(InferError(kPadValue, x, {.before = {0, -1}, .after = {0, 0}}),
            "pad_value: expected 2 widths before and after f32[2, 4], none negative, got [0, -1] and [0, 0]");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(
      InferError(kPad, x, {.before = {0, kMost}, .after = {0, kMost}}),
      "pad: dim 1 of f32[2, 4] would be longer than an extent can be, by 9223372036854775807 before and "
      "9223372036854775807 after");
  EXPECT_EQ(InferError(kPad, x, {.before = {0, 0}, .after = {kMost - 1, 0}}),
            "pad: dim 0 of f32[2, 4] would be longer than an extent can be, by 0 before and "
            "9223372036854775806 after");
  EXPECT_EQ(InferError(kFlip, x, {.dims = {1, 1}}),
            "flip: expected dims of f32[2, 4], each once, got {1, 1}");
  EXPECT_EQ(InferError(kRoll, x, {.dim = -1}), "roll: there is no dim -1 in f32[2, 4]");
  EXPECT_EQ(InferError(kTriangle, {DType::kF32, {3}}, {.lower = true}),
            "tril: expected two dims or more, got f32[3]");
}

}  // namespace
}  // namespace weft
