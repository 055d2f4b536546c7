#include "ops/attention/rotary.h"

#include <cmath>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

Tensor Random(DType dtype, const Shape& shape) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = uniform(random);
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

// The definition, element by element, angles by libm.
Tensor Naive(const Tensor& x, const RotaryAttributes& a) {
  const int64_t e = x.shape()[x.ndim() - 1];
  const int64_t seq = x.shape()[1];
  int64_t heads = 1;
  for (int dim = 2; dim + 1 < x.ndim(); ++dim) heads *= x.shape()[dim];
  const std::vector<double> in = x.ToVector<double>();
  std::vector<double> out(in.size());
  for (int64_t row = 0; e > 0 && row < static_cast<int64_t>(in.size()) / e; ++row) {
    const int64_t position = row / heads % seq;
    for (int64_t j = 0; j < e / 2; ++j) {
      const double angle =
          static_cast<double>(position) * std::pow(a.base, -2.0 * static_cast<double>(j) / e);
      const double sine = a.inverse ? -std::sin(angle) : std::sin(angle);
      const int64_t first = row * e + (a.interleaved ? 2 * j : j);
      const int64_t second = a.interleaved ? first + 1 : first + e / 2;
      out[first] = in[first] * std::cos(angle) - in[second] * sine;
      out[second] = in[second] * std::cos(angle) + in[first] * sine;
    }
  }
  return CastTensor(Tensor::FromValues<double>(x.shape(), out), x.dtype(), MakeCpuAllocator());
}

TEST(RotaryTest, MatchesTheDefinition) {
  for (const Shape& shape : {Shape{2, 5, 3, 8}, Shape{1, 200, 1, 2}, Shape{2, 65, 6}, Shape{1, 3, 2, 2, 4},
                             Shape{2, 0, 3, 4}, Shape{1, 2, 3, 0}}) {
    for (bool interleaved : {false, true}) {
      const RotaryAttributes a = {.base = 500, .interleaved = interleaved, .inverse = shape[0] == 2};
      const Tensor x = Random(DType::kF64, shape);
      EXPECT_TRUE(AllClose(RunOp(kRotary, {x}, a), Naive(x, a), 1e-13)) << shape;
      const Tensor y = Random(DType::kF32, shape);
      EXPECT_TRUE(AllClose(RunOp(kRotary, {y}, a), Naive(y, a), 1e-6)) << shape;
      const Tensor z = Random(DType::kBF16, shape);
      EXPECT_TRUE(AllClose(RunOp(kRotary, {z}, a), Naive(z, a), 1e-2)) << shape;
    }
  }
}

TEST(RotaryTest, FarPositionsAreAccurate) {
  const Tensor x = Random(DType::kF32, {1, 1, 1, 4});
  const int64_t position = 1000003;
  const ShardBox box = {{1, 2000000, 1, 4}, {0, position, 0, 0}, {1, 1, 1, 4}};
  const std::vector<float> y = RunSharded(kRotary, {{x, box}}, {box})[0].ToVector<float>();
  const std::vector<float> in = x.ToVector<float>();
  for (int j = 0; j < 2; ++j) {
    const double angle = static_cast<double>(position) * (j == 0 ? 1.0 : 0.01);
    EXPECT_NEAR(y[j], in[j] * std::cos(angle) - in[j + 2] * std::sin(angle), 1e-6);
    EXPECT_NEAR(y[j + 2], in[j + 2] * std::cos(angle) + in[j] * std::sin(angle), 1e-6);
  }
}

// A piece of the sequence gets the very bits of the whole, wherever it begins.
TEST(RotaryTest, PiecesHaveTheBitsOfTheWhole) {
  const Tensor x = Random(DType::kF32, {2, 150, 2, 4});
  const Tensor whole = RunOp(kRotary, {x});
  for (const Range& range : {Range{0, 70}, Range{63, 2}, Range{64, 64}, Range{149, 1}, Range{150, 0}}) {
    const Tensor piece = RunSharded(kRotary, {SplitPiece(x, 1, range)}, {SplitBox(x.shape(), 1, range)})[0];
    EXPECT_TRUE(SameBits(piece, whole.Slice(1, range.offset, range.size))) << range.offset;
  }
}

TEST(RotaryTest, StridedOperands) {
  const Tensor packed = Random(DType::kF32, {2, 5, 3, 2, 4});
  const Tensor slice = packed.Select(2, 1);
  const Tensor transposed = Random(DType::kF32, {2, 3, 5, 4}).Transpose(1, 2);
  const Tensor elements = Random(DType::kF32, {2, 5, 4, 3}).Transpose(2, 3);
  for (const Tensor& x : {slice, transposed, elements}) {
    EXPECT_TRUE(SameBits(RunOp(kRotary, {x}), RunOp(kRotary, {CloneTensor(x, MakeCpuAllocator())})));
  }
}

TEST(RotaryTest, BitsDoNotDependOnThreads) {
  const Tensor x = Random(DType::kF32, {2, 300, 8, 16});
  EXPECT_TRUE(SameBits(RunOp(kRotary, {x}, {}, {}, /*num_threads=*/2), RunOp(kRotary, {x}, {}, {}, 1)));
}

std::string InferError(const TensorType& x, const RotaryAttributes& a = {}) {
  try {
    kRotary.Infer({x}, &a);
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(RotaryTest, Errors) {
  EXPECT_EQ(InferError({DType::kF32, {2, 3, 5}}),
            "rotary: elements turn in pairs, so the last dim must be even; got f32[2, 3, 5]");
  EXPECT_EQ(InferError({DType::kI32, {2, 3, 4}}),
            "rotary: expected a floating x [b, s, ..., e], got i32[2, 3, 4]");
  EXPECT_EQ(InferError({DType::kF32, {3, 4}}), "rotary: expected a floating x [b, s, ..., e], got f32[3, 4]");
  EXPECT_EQ(InferError({DType::kF32, {2, 3, 4}}, {.base = 0}), "rotary: expected a positive base, got 0");
}

}  // namespace
}  // namespace weft
