#include "ops/shape/strided_slice.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

// [o, n, k] of whole numbers from `first` on.
Tensor Counted(const Shape& shape, DType dtype, double first = 1) {
  std::vector<double> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<double>(i % 90);
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

// Whether place `i` of the dim is one of the slice's, and which.
int64_t NumberOf(const StridedSliceAttributes& a, int64_t i) {
  for (int64_t j = 0; j < a.length; ++j) {
    if (a.start + j * a.step == i) return j;
  }
  return -1;
}

// What slice_scatter makes of x, and of zeros without `src`, by single elements.
std::vector<double> Put(const Tensor& x, const Tensor* src, const StridedSliceAttributes& a) {
  std::vector<double> values = x.ToVector<double>();
  const std::vector<double> from = src == nullptr ? std::vector<double>() : src->ToVector<double>();
  const int64_t n = x.shape()[1];
  const int64_t inner = x.shape()[2];
  for (size_t at = 0; at < values.size(); ++at) {
    const auto place = static_cast<int64_t>(at);
    const int64_t j = NumberOf(a, place / inner % n);
    if (j < 0) continue;
    values[at] = src == nullptr ? 0 : from[(place / (n * inner) * a.length + j) * inner + place % inner];
  }
  return values;
}

std::vector<StridedSliceAttributes> Slices(int64_t n) {
  std::vector<StridedSliceAttributes> slices;
  for (int64_t step : {1, 2, 3, 7}) {
    for (int64_t start : {int64_t{0}, n / 2, n}) {
      const int64_t most = start >= n ? 0 : (n - 1 - start) / step + 1;
      for (int64_t length = 0; length <= most; length += most > 2 ? most - 1 : 1) {
        slices.push_back({.dim = 1, .start = start, .length = length, .step = step});
      }
    }
  }
  return slices;
}

TEST(StridedSliceTest, AgreesWithALoopOverPlaces) {
  for (const Shape& shape :
       {Shape{2, 7, 3}, Shape{1, 1, 1}, Shape{3, 8, 1}, Shape{2, 0, 3}, Shape{2, 5, 0}}) {
    for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kI64, DType::kU8}) {
      const Tensor x = Counted(shape, dtype);
      for (const StridedSliceAttributes& a : Slices(shape[1])) {
        const Tensor y = RunOp(kStridedSlice, {x}, a);
        const Tensor src = Counted({shape[0], a.length, shape[2]}, dtype, 100);
        const std::vector<double> all = x.ToVector<double>();
        std::vector<double> taken;
        for (size_t at = 0; at < all.size(); ++at) {
          if (NumberOf(a, static_cast<int64_t>(at) / shape[2] % shape[1]) >= 0) taken.push_back(all[at]);
        }
        EXPECT_EQ(y.ToVector<double>(), taken) << shape << " " << a.start << " " << a.length << " " << a.step;
        EXPECT_EQ(RunOp(kSliceScatter, {x, src}, a).ToVector<double>(), Put(x, &src, a)) << shape;
        EXPECT_EQ(RunOp(kSliceZero, {x}, a).ToVector<double>(), Put(x, nullptr, a)) << shape;
        const Tensor zeros = Counted(shape, dtype);
        FillTensor(zeros, 0);
        EXPECT_EQ(
            RunOp(kStridedSliceGrad, {src}, {.dim = 1, .start = a.start, .step = a.step, .extent = shape[1]})
                .ToVector<double>(),
            Put(zeros, &src, a));
      }
    }
  }
}

// Uneven pieces, an empty one among them: each puts what falls into it.
TEST(StridedSliceTest, PiecesOfXMakeTheWhole) {
  const Tensor x = Counted({2, 7, 2}, DType::kF32);
  const StridedSliceAttributes a = {.dim = 1, .start = 1, .length = 3, .step = 2};
  const Tensor src = Counted({2, 3, 2}, DType::kF32, 100);
  const Tensor whole = RunOp(kSliceScatter, {x, src}, a);
  for (const Range& range : {Range{0, 3}, Range{3, 0}, Range{3, 3}, Range{6, 1}}) {
    const Tensor y = RunSharded(kSliceScatter, {SplitPiece(x, 1, range), WholePiece(src)},
                                {SplitBox(x.shape(), 1, range)}, a)[0];
    EXPECT_TRUE(SameBits(y, CloneTensor(whole.Slice(1, range.offset, range.size), MakeCpuAllocator())));
  }
}

// A step of any size, of which two do not add up.
TEST(StridedSliceTest, TheLargestStepTakesTheFirst) {
  const StridedSliceAttributes a = {
      .dim = 0, .start = 1, .length = 1, .step = std::numeric_limits<int64_t>::max()};
  const Tensor x = Tensor::FromValues<double>({4}, {1, 2, 3, 4});
  const Tensor src = Tensor::FromValues<double>({1}, {9});
  EXPECT_EQ(RunOp(kSliceScatter, {x, src}, a).ToVector<double>(), (std::vector<double>{1, 9, 3, 4}));
  EXPECT_EQ(RunOp(kSliceZero, {x}, a).ToVector<double>(), (std::vector<double>{1, 0, 3, 4}));
  EXPECT_EQ(RunOp(kStridedSlice, {x}, a).ToVector<double>(), (std::vector<double>{2}));
}

TEST(StridedSliceTest, ScatterKeepsTheSignOfZeroAndNaN) {
  const Tensor x = Tensor::FromValues<float>({3}, {-0.0f, 1, std::nanf("")});
  const Tensor src = Tensor::FromValues<float>({1}, {-0.0f});
  EXPECT_TRUE(SameBits(RunOp(kSliceScatter, {x, src}, {.dim = 0, .start = 1, .length = 1, .step = 1}),
                       Tensor::FromValues<float>({3}, {-0.0f, -0.0f, std::nanf("")})));
}

TEST(StridedSliceTest, RefusesMisuse) {
  const TensorType x = {DType::kF32, {2, 5}};
  const auto slice = [&](const StridedSliceAttributes& a) {
    return InvalidArgumentMessage([&] { kStridedSlice.Infer({x}, &a); });
  };
  EXPECT_EQ(slice({.dim = 2}), "strided_slice: there is no dim 2 in f32[2, 5]");
  EXPECT_EQ(slice({.dim = 1, .length = 2, .step = 0}), "strided_slice: the step must be positive, got 0");
  EXPECT_EQ(slice({.dim = 1, .start = 1, .length = 3, .step = 2}),
            "strided_slice: 3 elements from 1 in steps of 2 do not lie within dim 1 of f32[2, 5]");
  const StridedSliceAttributes a = {.dim = 1, .start = 0, .length = 3, .step = 2};
  EXPECT_EQ(InvalidArgumentMessage([&] {
              kSliceScatter.Infer({x, {DType::kF32, {2, 2}}}, &a);
            }),
            "slice_scatter: src must be f32[2, 3], got f32[2, 2]");
}

}  // namespace
}  // namespace weft
