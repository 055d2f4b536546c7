// Powers, and arithmetic with numbers.

#include "ops/elementwise/power.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/scalar_arithmetic.h"
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

constexpr DType kFloatingDTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};

// Rounding of one operation in the dtype.
double Epsilon(DType dtype) {
  return dtype == DType::kF64   ? 0x1p-51
         : dtype == DType::kF32 ? 0x1p-22
         : dtype == DType::kF16 ? 0x1p-11
                                : 0x1p-8;
}

TEST(PowerTest, TensorToTheTensorAndToTheNumber) {
  const std::vector<double> bases = {0.25, 0.5, 1, 1.5, 2, 3};
  for (DType dtype : kFloatingDTypes) {
    const Tensor x = FromDoubles({6}, bases, dtype);
    for (double exponent : {-3.0, -2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 1.75, 2.0, 3.0, 4.0}) {
      std::vector<double> expected;
      for (double base : bases) expected.push_back(std::pow(base, exponent));
      const Tensor y = FromDoubles({6}, expected, dtype);
      EXPECT_TRUE(AllClose(RunOp(kPow, {x, FromDoubles({}, {exponent}, dtype)}), y, Epsilon(dtype)))
          << DTypeName(dtype) << " " << exponent;
      EXPECT_TRUE(AllClose(RunOp(kPowScalar, {x}, {}, {.exponent = exponent}), y, Epsilon(dtype)))
          << DTypeName(dtype) << " " << exponent;
    }
  }
}

// C's table for pow (C17, F.10.4.4).
TEST(PowerTest, SpecialValues) {
  const Tensor a = FromDoubles({8}, {kNan, 1, -1, 0, -2, -kInf, 0.5, -8});
  const Tensor b = FromDoubles({8}, {0, kNan, kInf, -1, 3, 3, -kInf, 1.0 / 3});
  EXPECT_TRUE(AllClose(RunOp(kPow, {a, b}), FromDoubles({8}, {1, 1, 1, kInf, -8, -kInf, kInf, kNan}), 0));
  const Tensor x = FromDoubles({5}, {kNan, -0.0, -2, kInf, -kInf});
  EXPECT_TRUE(AllClose(RunOp(kPowScalar, {x}, {}, {.exponent = 0}), FromDoubles({5}, {1, 1, 1, 1, 1}), 0));
  EXPECT_TRUE(
      AllClose(RunOp(kPowScalar, {x}, {}, {.exponent = 3}), FromDoubles({5}, {kNan, 0, -8, kInf, -kInf}), 0));
  EXPECT_TRUE(AllClose(RunOp(kPowScalar, {x}, {}, {.exponent = 0.5}),
                       FromDoubles({5}, {kNan, 0, kNan, kInf, kNan}), 0));
}

TEST(PowerTest, IntegersWrapAndTruncate) {
  const Tensor a = FromDoubles({9}, {2, -3, 0, 0, 7, 1, -1, -1, 2}, DType::kI32);
  const Tensor b = FromDoubles({9}, {10, 3, 0, 5, 1, -4, -3, -2, -1}, DType::kI32);
  EXPECT_EQ(Elements(RunOp(kPow, {a, b})), (std::vector<double>{1024, -27, 1, 0, 7, 1, -1, 1, 0}));
  const Tensor zero = FromDoubles({1}, {0}, DType::kI64);
  EXPECT_EQ(Elements(RunOp(kPow, {zero, FromDoubles({1}, {-1}, DType::kI64)})), std::vector<double>{0});
  const Tensor three = Tensor::FromValues<int64_t>({1}, {3});
  uint64_t wrapped = 1;
  for (int i = 0; i < 45; ++i) wrapped *= 3;
  EXPECT_EQ(RunOp(kPowScalar, {three}, {}, {.exponent = 45}).ToVector<int64_t>()[0],
            static_cast<int64_t>(wrapped));
}

// The values of torch.pow's backward at the edges.
TEST(PowerTest, GradientsAtTheEdges) {
  const Tensor a = FromDoubles({5}, {0, 0, 2, -1, 0}, DType::kF64);
  const Tensor b = FromDoubles({5}, {0, 2, 0, 3, -1}, DType::kF64);
  const Tensor dy = FromDoubles({5}, {1, 1, 1, 1, 1}, DType::kF64);
  const std::vector<Tensor> gradients = Backward(kPow, {a, b}, {dy});
  EXPECT_TRUE(AllClose(gradients[0], FromDoubles({5}, {0, 0, 0, 3, -kInf}, DType::kF64), 0));
  EXPECT_TRUE(AllClose(gradients[1], FromDoubles({5}, {0, 0, std::log(2), kNan, -kInf}, DType::kF64), 1e-15));
  EXPECT_EQ(Elements(Backward(kPowScalar, {a}, {dy}, {}, {.exponent = 0})[0]),
            (std::vector<double>{0, 0, 0, 0, 0}));
  EXPECT_EQ(Elements(Backward(kPowScalar, {a}, {dy}, {}, {.exponent = 1})[0]), Elements(dy));
  EXPECT_EQ(Elements(Backward(kPowScalar, {a}, {dy}, {}, {.exponent = 2})[0]),
            (std::vector<double>{0, 0, 4, -2, 0}));
}

TEST(ScalarArithmeticTest, EveryFormRoundsOnce) {
  const std::vector<double> values = {0.75, -2, 3, 1e-3, -0.0};
  for (DType dtype : kFloatingDTypes) {
    const Tensor x = FromDoubles({5}, values, dtype);
    std::vector<double> sum, difference, quotient, inverse;
    for (double v : Elements(x)) {
      sum.push_back(v + 1.5);
      difference.push_back(1.5 - v);
      quotient.push_back(v / 3);
      inverse.push_back(3 / v);
    }
    const double tolerance = dtype == DType::kF32 ? 0x1p-23 : 0;  // the oracle rounds f32 twice
    const auto expect = [&](const Tensor& got, const std::vector<double>& expected) {
      EXPECT_TRUE(AllClose(got, FromDoubles({5}, expected, dtype), tolerance)) << DTypeName(dtype);
    };
    expect(RunOp(kShift, {x}, {}, {.shift = 1.5}), sum);
    expect(RunOp(kShift, {x}, {}, {.negate = true, .shift = 1.5}), difference);
    expect(RunOp(kDivScalar, {x}, {}, {.divisor = 3}), quotient);
    expect(RunOp(kScalarDiv, {x}, {}, {.dividend = 3}), inverse);
  }
}

// 1.005 is no bf16; the number must not be rounded to it before the sum.
TEST(ScalarArithmeticTest, TheNumberOfAHalfIsAFloat) {
  const Tensor x = FromDoubles({1}, {-1}, DType::kBF16);
  EXPECT_TRUE(
      AllClose(RunOp(kShift, {x}, {}, {.shift = 1.005}), FromDoubles({1}, {0.005}, DType::kBF16), 1e-4));
}

TEST(ScalarArithmeticTest, IntegersWrap) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  const Tensor x = Tensor::FromValues<int64_t>({3}, {max, -5, (int64_t{1} << 53) + 1});
  EXPECT_EQ(RunOp(kShift, {x}, {}, {.shift = 2}).ToVector<int64_t>(),
            (std::vector<int64_t>{-max, -3, (int64_t{1} << 53) + 3}));
  EXPECT_EQ(RunOp(kShift, {x}, {}, {.negate = true, .shift = -1}).ToVector<int64_t>(),
            (std::vector<int64_t>{-max - 1, 4, -(int64_t{1} << 53) - 2}));
  EXPECT_EQ(RunOp(kScale, {x}, {}, {.factor = -2}).ToVector<int64_t>(),
            (std::vector<int64_t>{2, 10, -(int64_t{1} << 54) - 2}));
  EXPECT_EQ(RunOp(kNeg, {Tensor::FromValues<int32_t>({3}, {7, 0, std::numeric_limits<int32_t>::min()})})
                .ToVector<int32_t>(),
            (std::vector<int32_t>{-7, 0, std::numeric_limits<int32_t>::min()}));
}

TEST(PowerTest, MisuseIsNamed) {
  const Tensor f32 = FromDoubles({2}, {0, 1});
  const Tensor i32 = FromDoubles({2}, {0, 1}, DType::kI32);
  EXPECT_EQ(MessageOf([&] { RunOp(kPowScalar, {i32}, {}, {.exponent = -1}); }),
            "pow_scalar: integers have no powers of -1");
  EXPECT_EQ(MessageOf([&] { RunOp(kPowScalar, {i32}, {}, {.exponent = 0.5}); }),
            "pow_scalar: expected a whole number that fits i32, got 0.5");
  EXPECT_EQ(MessageOf([&] { RunOp(kShift, {i32}, {}, {.shift = 2147483648.0}); }),
            "shift: expected a whole number that fits i32, got 2.14748e+09");
  EXPECT_EQ(MessageOf([&] { RunOp(kShift, {Tensor::FromValues<int64_t>({1}, {1})}, {}, {.shift = 0x1p63}); }),
            "shift: expected a whole number that fits i64, got 9.22337e+18");
  EXPECT_EQ(MessageOf([&] { RunOp(kScale, {i32}, {}, {.factor = 0.5}); }),
            "scale: expected a whole number that fits i32, got 0.5");
  EXPECT_EQ(MessageOf([&] { RunOp(kDivScalar, {i32}, {}, {.divisor = 2}); }),
            "div_scalar: expected a floating dtype, got i32[2]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kPow, {f32, i32});
            }),
            "pow: expected operands of one dtype, got f32[2] and i32[2]");
}

}  // namespace
}  // namespace weft
