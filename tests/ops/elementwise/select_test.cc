#include "ops/elementwise/select.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor FromDoubles(const Shape& shape, const std::vector<double>& values, DType dtype = DType::kF32) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

std::vector<double> Elements(const Tensor& x) { return x.ToVector<double>(); }

TEST(SelectTest, WhereOfEveryDType) {
  const Tensor condition = Tensor::FromValues<bool>({4}, {true, false, false, true});
  for (DType dtype : kAllDTypes) {
    const Tensor a = FromDoubles({4}, {1, 0, 1, 0}, dtype);
    const Tensor b = FromDoubles({4}, {0, 1, 1, 1}, dtype);
    const Tensor y = RunOp(kWhere, {condition, a, b});
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(Elements(y), (std::vector<double>{1, 1, 1, 0})) << DTypeName(dtype);
    EXPECT_EQ(Elements(RunOp(kKeepWhere, {condition, b})), (std::vector<double>{0, 0, 0, 1}));
    EXPECT_EQ(Elements(RunOp(kKeepWhere, {condition, b}, {.value = false})),
              (std::vector<double>{0, 1, 1, 0}));
  }
  // All bits of the widest types pass.
  const int64_t big = (int64_t{1} << 53) + 1;
  const Tensor wide = Tensor::FromValues<int64_t>({4}, {big, big, -big, -big});
  EXPECT_EQ(RunOp(kWhere, {condition, wide, wide}).ToVector<int64_t>(), wide.ToVector<int64_t>());
}

// What is not chosen does not matter, were it NaN.
TEST(SelectTest, WhereHidesWhatItDoesNotChoose) {
  const Tensor condition = Tensor::FromValues<bool>({2, 1}, {true, false});
  const Tensor a = FromDoubles({2, 2}, {1, 2, kNan, kInf});
  const Tensor b = FromDoubles({2}, {kInf, -0.5});
  EXPECT_EQ(Elements(RunOp(kWhere, {condition, a, b})), (std::vector<double>{1, 2, kInf, -0.5}));
  const std::vector<Tensor> gradients =
      Backward(kWhere, {condition, a, b}, {FromDoubles({2, 2}, {1, 2, 3, 4})});
  EXPECT_EQ(Elements(gradients[1]), (std::vector<double>{1, 2, 0, 0}));
  EXPECT_EQ(Elements(gradients[2]), (std::vector<double>{3, 4}));
  EXPECT_FALSE(gradients[0].defined());
}

TEST(SelectTest, WhereAtEverySizeOnTwoThreads) {
  for (int64_t n : {0, 1, 511, 513, 40001}) {
    std::vector<double> holds, a;
    for (int64_t i = 0; i < n; ++i) {
      holds.push_back(i * 5 % 3 == 0 ? 1 : 0);
      a.push_back(static_cast<double>(i));
    }
    const Tensor condition = FromDoubles({n}, holds, DType::kBool);
    const std::vector<double> y = Elements(
        RunOp(kWhere, {condition, FromDoubles({n}, a), FromDoubles({}, {-1})}, {}, {}, /*num_threads=*/2));
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y[i], holds[i] == 1 ? a[i] : -1) << i;
  }
}

TEST(SelectTest, NanWinsInMaximumAndMinimum) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor a = FromDoubles({6}, {1, -2, kNan, 3, kInf, kNan}, dtype);
    const Tensor b = FromDoubles({6}, {2, -3, 0, kNan, -kInf, kNan}, dtype);
    EXPECT_TRUE(
        AllClose(RunOp(kMaximum, {a, b}), FromDoubles({6}, {2, -2, kNan, kNan, kInf, kNan}, dtype), 0));
    EXPECT_TRUE(
        AllClose(RunOp(kMinimum, {a, b}), FromDoubles({6}, {1, -3, kNan, kNan, -kInf, kNan}, dtype), 0));
  }
  for (DType dtype : {DType::kI32, DType::kI64, DType::kU8, DType::kBool}) {
    const Tensor a = FromDoubles({2, 1}, {0, 1}, dtype);
    const Tensor b = FromDoubles({2}, {0, 1}, dtype);
    EXPECT_EQ(Elements(RunOp(kMaximum, {a, b})), (std::vector<double>{0, 1, 1, 1})) << DTypeName(dtype);
    EXPECT_EQ(Elements(RunOp(kMinimum, {a, b})), (std::vector<double>{0, 0, 0, 1})) << DTypeName(dtype);
  }
}

// torch.maximum and torch.minimum: equal elements share, and NaN sends the gradient to both.
TEST(SelectTest, ExtremaShareTheGradientAtTies) {
  const Tensor a = FromDoubles({4}, {1, 2, 3, kNan});
  const Tensor b = FromDoubles({4}, {2, 2, 2, 2});
  const Tensor dy = FromDoubles({4}, {10, 20, 30, 40});
  std::vector<Tensor> gradients = Backward(kMaximum, {a, b}, {dy});
  EXPECT_EQ(Elements(gradients[0]), (std::vector<double>{0, 10, 30, 40}));
  EXPECT_EQ(Elements(gradients[1]), (std::vector<double>{10, 10, 0, 40}));
  gradients = Backward(kMinimum, {a, b}, {dy});
  EXPECT_EQ(Elements(gradients[0]), (std::vector<double>{10, 10, 0, 40}));
  EXPECT_EQ(Elements(gradients[1]), (std::vector<double>{0, 10, 30, 40}));
  gradients = Backward(kMaximum, {a, FromDoubles({}, {2})}, {dy});
  EXPECT_EQ(Elements(gradients[1]), std::vector<double>{60});
}

TEST(SelectTest, ClampCutsToItsBounds) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor x = FromDoubles({6}, {-3, -1, 0.5, 2, kInf, kNan}, dtype);
    EXPECT_TRUE(AllClose(RunOp(kClamp, {x}, {}, {.min = -1, .max = 2}),
                         FromDoubles({6}, {-1, -1, 0.5, 2, 2, kNan}, dtype), 0));
    EXPECT_TRUE(
        AllClose(RunOp(kClamp, {x}, {}, {.min = 0}), FromDoubles({6}, {0, 0, 0.5, 2, kInf, kNan}, dtype), 0));
    // As torch.clamp: the upper bound wins.
    EXPECT_TRUE(AllClose(RunOp(kClamp, {x}, {}, {.min = 2, .max = 1}),
                         FromDoubles({6}, {1, 1, 1, 1, 1, kNan}, dtype), 0));
  }
  const Tensor whole = FromDoubles({4}, {-9, -1, 4, 9}, DType::kI64);
  EXPECT_EQ(Elements(RunOp(kClamp, {whole}, {}, {.min = -2, .max = 5})), (std::vector<double>{-2, -1, 4, 5}));
  EXPECT_EQ(Elements(RunOp(kClamp, {whole}, {}, {.min = -1e30, .max = 5})),
            (std::vector<double>{-9, -1, 4, 5}));
}

TEST(SelectTest, ClampPassesTheGradientWithinItsBounds) {
  const Tensor x = FromDoubles({6}, {-3, -1, 0.5, 2, 2.5, kNan});
  const Tensor dy = FromDoubles({6}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Elements(Backward(kClamp, {x}, {dy}, {}, {.min = -1, .max = 2})[0]),
            (std::vector<double>{0, 2, 3, 4, 0, 0}));
}

TEST(SelectTest, MisuseIsNamed) {
  const Tensor f32 = FromDoubles({2}, {0, 1});
  const Tensor i32 = FromDoubles({2}, {0, 1}, DType::kI32);
  const Tensor condition = Tensor::FromValues<bool>({2}, {true, false});
  EXPECT_EQ(MessageOf([&] {
              RunOp(kWhere, {f32, f32, f32});
            }),
            "where: expected a bool condition, got f32[2]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kWhere, {condition, f32, i32});
            }),
            "where: expected operands of one dtype, got f32[2] and i32[2]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kWhere, {condition, f32, FromDoubles({3}, {0, 0, 0})});
            }),
            "where: bool[2] and f32[3] do not broadcast: counted from the last, their dim 0 is neither equal "
            "nor 1");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kMaximum, {f32, i32});
            }),
            "maximum: expected operands of one dtype, got f32[2] and i32[2]");
  EXPECT_EQ(MessageOf([&] { RunOp(kClamp, {condition}, {}, {.min = 0}); }),
            "clamp: expected a floating, i32 or i64 dtype, got bool[2]");
  EXPECT_EQ(MessageOf([&] { RunOp(kClamp, {i32}, {}, {.min = 0.5}); }),
            "clamp: expected whole bounds for i32, got 0.5");
  EXPECT_EQ(MessageOf([&] { RunOp(kClamp, {f32}, {}, {.max = kNan}); }), "clamp: a bound is NaN");
}

}  // namespace
}  // namespace weft
