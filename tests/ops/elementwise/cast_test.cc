#include "ops/elementwise/cast.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/ops/single_device.h"

namespace weft {
namespace {

TEST(CastTest, RoundsToNearest) {
  // 1 + 2^-8 lies halfway between two bf16 numbers: to even.
  const Tensor x = Tensor::FromValues<float>({3}, std::vector<float>{1.00390625f, 1.01171875f, -2.5f});
  EXPECT_EQ(RunOp(kCast, {x}, {.dtype = DType::kBF16}).ToVector<float>(),
            (std::vector<float>{1, 1.015625f, -2.5f}));
}

TEST(CastTest, StridedAndEmptyOperands) {
  const Tensor x = Tensor::FromValues<double>({2, 2}, std::vector<double>{1, 2, 3, 4}).Transpose(0, 1);
  const Tensor y = RunOp(kCast, {x}, {.dtype = DType::kF32});
  EXPECT_EQ(y.ToVector<float>(), (std::vector<float>{1, 3, 2, 4}));
  EXPECT_TRUE(y.IsContiguous());
  EXPECT_EQ(RunOp(kCast, {x.Slice(0, 0, 0)}, {.dtype = DType::kF32}).shape(), (Shape{0, 2}));
}

TEST(CastTest, BackwardCastsBack) {
  const Tensor x = Tensor::FromValues<double>({1}, std::vector<double>{1});
  const Tensor dy = Tensor::FromValues<float>({1}, std::vector<float>{0.5f});
  const Tensor dx = Backward(kCast, {x}, {dy}, {.dtype = DType::kF32})[0];
  EXPECT_EQ(dx.dtype(), DType::kF64);
  EXPECT_EQ(dx.ToVector<double>(), std::vector<double>{0.5});
}

TEST(ConvertTest, TruncatesToIntegers) {
  const Tensor x = Tensor::FromValues<float>({4}, std::vector<float>{1.9f, -1.9f, 0.4f, 0});
  EXPECT_EQ(RunOp(kConvert, {x}, {.dtype = DType::kI32}).ToVector<int32_t>(),
            (std::vector<int32_t>{1, -1, 0, 0}));
  EXPECT_EQ(RunOp(kConvert, {x}, {.dtype = DType::kBool}).ToVector<int32_t>(),
            (std::vector<int32_t>{1, 1, 1, 0}));
}

TEST(CastTest, Errors) {
  const CastAttributes attributes = {.dtype = DType::kI64};
  try {
    kCast.Infer({{DType::kF32, {2}}}, &attributes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "cast: expected a floating dtype for f32[2], got i64; use convert");
  }
}

}  // namespace
}  // namespace weft
