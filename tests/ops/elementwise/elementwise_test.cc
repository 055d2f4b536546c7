#include "ops/elementwise/elementwise.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <string>
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

Tensor FromDoubles(const Shape& shape, const std::vector<double>& values, DType dtype) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

Tensor Uniform(const Shape& shape, double low, double high, DType dtype = DType::kF32, int seed = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = uniform(random);
  return FromDoubles(shape, values, dtype);
}

// Elements of two tensors under broadcasting, by plain index arithmetic.
std::vector<double> Broadcast(const Tensor& a, const Tensor& b, const Shape& shape,
                              double (*f)(double, double)) {
  const std::vector<double> a_values = a.ToVector<double>();
  const std::vector<double> b_values = b.ToVector<double>();
  const auto at = [&](const Tensor& t, const std::vector<double>& values, int64_t index) {
    int64_t offset = 0;
    int64_t stride = 1;
    for (int dim = shape.ndim() - 1; dim >= 0; --dim) {
      const int own = dim - (shape.ndim() - t.ndim());
      if (own >= 0 && t.shape()[own] != 1) offset += index % shape[dim] * stride;
      if (own >= 0) stride *= t.shape()[own];
      index /= shape[dim];
    }
    return values[offset];
  };
  std::vector<double> result;
  for (int64_t i = 0; i < shape.num_elements(); ++i)
    result.push_back(f(at(a, a_values, i), at(b, b_values, i)));
  return result;
}

struct BinaryCase {
  const Op<>* op;
  double (*f)(double, double);
};
const BinaryCase kBinaryCases[] = {{&kAdd, [](double a, double b) { return a + b; }},
                                   {&kSub, [](double a, double b) { return a - b; }},
                                   {&kMul, [](double a, double b) { return a * b; }},
                                   {&kDiv, [](double a, double b) { return a / b; }}};

TEST(ElementwiseTest, BinaryBroadcastsAsNumPy) {
  struct Case {
    Shape a, b, y;
  };
  const Case cases[] = {{{3, 5}, {3, 5}, {3, 5}},
                        {{}, {}, {}},
                        {{7}, {}, {7}},
                        {{}, {2, 3}, {2, 3}},
                        {{4, 130}, {130}, {4, 130}},  // rows long enough to be used in place
                        {{130}, {4, 3, 130}, {4, 3, 130}},
                        {{600, 3}, {3}, {600, 3}},  // short rows: gathered
                        {{4, 1, 3}, {5, 1}, {4, 5, 3}},
                        {{2, 3, 1, 5}, {1, 4, 1}, {2, 3, 4, 5}},
                        {{300, 1}, {1, 300}, {300, 300}},  // many tasks
                        {{0, 3}, {3}, {0, 3}},
                        {{1, 3}, {0, 1}, {0, 3}}};
  for (const Case& c : cases) {
    for (const BinaryCase& binary : kBinaryCases) {
      for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
        const Tensor a = Uniform(c.a, -2, 2, dtype, 1);
        const Tensor b = Uniform(c.b, 0.5, 2, dtype, 2);
        const Tensor expected = FromDoubles(c.y, Broadcast(a, b, c.y, binary.f), dtype);
        // One rounding: f32 quotients and sums are rounded once more on the way through f64 in the oracle.
        EXPECT_TRUE(AllClose(RunOp(*binary.op, {a, b}), expected, dtype == DType::kF32 ? 1e-7 : 0))
            << binary.op->name() << " " << a.TypeString() << " " << b.TypeString();
      }
    }
  }
}

TEST(ElementwiseTest, IntegersWrap) {
  const int32_t max32 = std::numeric_limits<int32_t>::max();
  const int64_t min64 = std::numeric_limits<int64_t>::min();
  const Tensor a = Tensor::FromValues<int32_t>({3}, {max32, -7, 1 << 20});
  const Tensor b = Tensor::FromValues<int32_t>({3}, {1, 3, 1 << 20});
  EXPECT_EQ(RunOp(kAdd, {a, b}).ToVector<int32_t>(), (std::vector<int32_t>{-max32 - 1, -4, 1 << 21}));
  EXPECT_EQ(RunOp(kMul, {a, b}).ToVector<int32_t>(), (std::vector<int32_t>{max32, -21, 0}));
  const Tensor c = Tensor::FromValues<int64_t>({2}, {min64, 1LL << 53});
  const Tensor one = Tensor::FromValues<int64_t>({}, {1});
  EXPECT_EQ(RunOp(kSub, {c, one}).ToVector<int64_t>(),
            (std::vector<int64_t>{std::numeric_limits<int64_t>::max(), (1LL << 53) - 1}));
}

struct UnaryCase {
  const Op<>* op;
  double (*f)(double);
  double low;
  double high;
  double ulps;  // of f32
};
const UnaryCase kUnaryCases[] = {{&kNeg, [](double x) { return -x; }, -9, 9, 0},
                                 {&kExp, [](double x) { return std::exp(x); }, -87, 88.7, 3},
                                 {&kLog, [](double x) { return std::log(x); }, 1e-30, 20, 4},
                                 {&kSqrt, [](double x) { return std::sqrt(x); }, 0, 9, 1},
                                 {&kRsqrt, [](double x) { return 1 / std::sqrt(x); }, 1e-3, 9, 2},
                                 {&kTanh, [](double x) { return std::tanh(x); }, -12, 12, 5},
                                 {&kSquare, [](double x) { return x * x; }, -9, 9, 1},
                                 {&kRelu, [](double x) { return x > 0 ? x : 0; }, -9, 9, 0}};

// |actual - expected| in units of the last place of an f32.
double Ulps(double actual, double expected) {
  if (std::isnan(actual) || std::isnan(expected))
    return std::isnan(actual) == std::isnan(expected) ? 0 : kInf;
  if (actual == expected) return 0;
  const double unit = std::ldexp(1, std::max(std::ilogb(expected), -126) - 23);
  return std::abs(actual - expected) / unit;
}

TEST(ElementwiseTest, UnaryMatchesLibmAtEverySize) {
  for (const UnaryCase& c : kUnaryCases) {
    for (int64_t n : {0, 1, 7, 15, 17, 513, 40001}) {
      const Tensor x = Uniform({n}, c.low, c.high);
      const std::vector<double> from = x.ToVector<double>();
      const std::vector<double> actual = RunOp(*c.op, {x}).ToVector<double>();
      ASSERT_EQ(actual.size(), from.size());
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_LE(Ulps(actual[i], c.f(from[i])), c.ulps)
            << c.op->name() << "(" << from[i] << ") = " << actual[i];
      }
    }
  }
}

TEST(ElementwiseTest, UnaryOtherDTypes) {
  for (const UnaryCase& c : kUnaryCases) {
    for (DType dtype : {DType::kF64, DType::kBF16, DType::kF16}) {
      const Tensor x = Uniform({7, 130}, std::max(c.low, -2.0), std::min(c.high, 2.0), dtype);
      std::vector<double> expected;
      for (double value : x.ToVector<double>()) expected.push_back(c.f(value));
      const double tolerance = dtype == DType::kF64 ? 1e-15 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
      EXPECT_TRUE(AllClose(RunOp(*c.op, {x}), FromDoubles(x.shape(), expected, dtype), tolerance))
          << c.op->name() << " " << x.TypeString();
    }
  }
}

TEST(ElementwiseTest, SpecialValues) {
  const std::vector<double> specials = {kNan, kInf,  -kInf, 0.0,  -0.0, 1e-40, -1e-40,
                                        3e38, -3e38, 100,   -100, 89,   -110};
  const Tensor x = FromDoubles({static_cast<int64_t>(specials.size())}, specials, DType::kF32);
  const std::vector<float> from = x.ToVector<float>();
  for (const UnaryCase& c : kUnaryCases) {
    const std::vector<float> actual = RunOp(*c.op, {x}).ToVector<float>();
    for (size_t i = 0; i < from.size(); ++i) {
      const float expected = static_cast<float>(std::isnan(from[i]) ? kNan : c.f(from[i]));
      EXPECT_LE(Ulps(actual[i], expected), c.ulps) << c.op->name() << "(" << from[i] << ") = " << actual[i];
    }
  }
  // Their limits, and NaN stays.
  for (const Tensor& y : {RunOp(kGelu, {x}), RunOp(kSilu, {x})}) {
    const std::vector<float> actual = y.ToVector<float>();
    EXPECT_TRUE(std::isnan(actual[0]));
    EXPECT_EQ(actual[1], static_cast<float>(kInf));
    EXPECT_EQ(actual[2], 0);
    EXPECT_EQ(actual[7], 3e38f);
    EXPECT_EQ(actual[8], 0);
    EXPECT_EQ(actual[9], 100);
    EXPECT_EQ(actual[10], 0);
  }
  const Tensor one = FromDoubles({}, {1}, DType::kF32).Expand(x.shape());
  for (const Tensor& dx : {RunOp(kGeluGrad, {x, one}), RunOp(kSiluGrad, {x, one})}) {
    const std::vector<float> actual = dx.ToVector<float>();
    EXPECT_TRUE(std::isnan(actual[0]));
    EXPECT_EQ(actual[1], 1);
    EXPECT_EQ(actual[2], 0);
    EXPECT_EQ(actual[3], 0.5f);
    EXPECT_EQ(actual[7], 1);
    EXPECT_EQ(actual[8], 0);
    EXPECT_EQ(actual[9], 1);
    EXPECT_EQ(actual[10], 0);
  }
}

double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double GeluErf(double x) { return x * 0.5 * (1 + std::erf(x / std::sqrt(2.0))); }
double Silu(double x) { return x / (1 + std::exp(-x)); }
double Slope(double (*f)(double), double x) { return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5; }

TEST(ElementwiseTest, ActivationsAndTheirDerivatives) {
  const Tensor x = Uniform({40001}, -14, 14);
  const Tensor dy = Uniform({40001}, -3, 3, DType::kF32, 2);
  struct Case {
    double (*f)(double);
    Tensor y, dx;
    double tolerance;  // relative to |x|: that is what the sum downstream feels
  };
  const Case cases[] = {
      {GeluTanh, RunOp(kGelu, {x}), RunOp(kGeluGrad, {x, dy}), 1e-6},
      {GeluErf, RunOp(kGelu, {x}, {.exact = true}), RunOp(kGeluGrad, {x, dy}, {.exact = true}), 1e-6},
      {Silu, RunOp(kSilu, {x}), RunOp(kSiluGrad, {x, dy}), 1e-6}};
  const std::vector<double> x_values = x.ToVector<double>();
  const std::vector<double> dy_values = dy.ToVector<double>();
  for (const Case& c : cases) {
    const std::vector<double> y = c.y.ToVector<double>();
    const std::vector<double> dx = c.dx.ToVector<double>();
    for (size_t i = 0; i < y.size(); ++i) {
      ASSERT_NEAR(y[i], c.f(x_values[i]), c.tolerance * std::abs(x_values[i])) << x_values[i];
      ASSERT_NEAR(dx[i], dy_values[i] * Slope(c.f, x_values[i]), 2e-6 * std::abs(dy_values[i]) + 1e-9)
          << x_values[i];
    }
  }
}

TEST(ElementwiseTest, GeluMatchesPublishedValues) {
  // torch.nn.functional.gelu(torch.tensor([-1., 0.5, 2.]), approximate='tanh'), and without.
  const Tensor x = FromDoubles({3}, {-1, 0.5, 2}, DType::kF64);
  EXPECT_TRUE(AllClose(
      RunOp(kGelu, {x}),
      FromDoubles({3}, {-0.15880800939172324, 0.34571400982514394, 1.954597694087775}, DType::kF64), 1e-12));
  EXPECT_TRUE(AllClose(
      RunOp(kGelu, {x}, {.exact = true}),
      FromDoubles({3}, {-0.15865525393145707, 0.34573123063700656, 1.9544997361036416}, DType::kF64), 1e-12));
}

// Also where |y| is near 1 and 1 - y^2 is what two nearly equal numbers differ by.
TEST(ElementwiseTest, TheDerivativeOfTanhKeepsItsDigits) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor x = Uniform({4001}, -9, 9, dtype);
    const Tensor dy = Uniform({4001}, 0.5, 2, dtype, 2);
    const std::vector<double> y = RunOp(kTanh, {x}).ToVector<double>();
    const std::vector<double> dx = Backward(kTanh, {x}, {dy})[0].ToVector<double>();
    const std::vector<double> slopes = dy.ToVector<double>();
    const double tolerance = dtype == DType::kF32    ? 0x1p-22
                             : dtype == DType::kF64  ? 0x1p-51
                             : dtype == DType::kBF16 ? 0x1.01p-8
                                                     : 0x1.01p-11;
    for (size_t i = 0; i < y.size(); ++i) {
      const auto wide = static_cast<long double>(y[i]);
      const double expected = static_cast<double>(slopes[i] * ((1 - wide) * (1 + wide)));
      ASSERT_NEAR(dx[i], expected, tolerance * expected) << DTypeName(dtype) << " at y = " << y[i];
    }
  }
}

TEST(ElementwiseTest, ReluGradPassesWhereTheOutputIsPositive) {
  const Tensor y = FromDoubles({4}, {0, 2, -0.0, kNan}, DType::kF32);
  const Tensor dy = FromDoubles({4}, {5, 6, 7, 8}, DType::kF32);
  EXPECT_EQ(RunOp(kReluGrad, {y, dy}).ToVector<float>(), (std::vector<float>{0, 6, 0, 8}));
}

TEST(ElementwiseTest, ScaleMultiplies) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const Tensor x = FromDoubles({3}, {1, -2, 0.5}, dtype);
    EXPECT_EQ(RunOp(kScale, {x}, {}, {.factor = -1.5}).ToVector<double>(),
              (std::vector<double>{-1.5, 3, -0.75}));
  }
}

TEST(ElementwiseTest, StridedOperandsGiveTheBitsOfTheirCopies) {
  const Tensor base = Uniform({6, 200, 10}, 0.5, 2);
  const Tensor views[] = {base.Transpose(0, 2),
                          base.Transpose(1, 2),
                          base.Slice(1, 3, 150),
                          base.Select(2, 4),
                          base.Slice(0, 2, 1).Expand({5, 200, 10}),
                          base.Select(0, 1).Slice(1, 0, 1)};
  for (const Tensor& view : views) {
    const Tensor copy = CloneTensor(view, MakeCpuAllocator());
    const Tensor other = Uniform(view.shape(), -1, 1, DType::kF32, 7);
    EXPECT_TRUE(SameBits(RunOp(kGelu, {view}), RunOp(kGelu, {copy}))) << view.TypeString();
    EXPECT_TRUE(SameBits(RunOp(kSub, {view, other}), RunOp(kSub, {copy, other}))) << view.TypeString();
    EXPECT_TRUE(SameBits(RunOp(kDiv, {other, view}), RunOp(kDiv, {other, copy}))) << view.TypeString();
  }
}

TEST(ElementwiseTest, BitsDependNeitherOnThreadsNorOnTheCut) {
  const Tensor x = Uniform({3, 20001}, -5, 5);
  for (const Op<>* op : {&kExp, &kTanh, &kSilu}) {
    const Tensor y = RunOp(*op, {x}, {}, {}, /*num_threads=*/1);
    EXPECT_TRUE(SameBits(RunOp(*op, {x}, {}, {}, /*num_threads=*/2), y)) << op->name();
    const Tensor piece = CloneTensor(x.Slice(1, 5, 37), MakeCpuAllocator());
    EXPECT_TRUE(SameBits(RunOp(*op, {piece}), CloneTensor(y.Slice(1, 5, 37), MakeCpuAllocator())))
        << op->name();
  }
  const Tensor bias = Uniform({20001}, -5, 5, DType::kF32, 3);
  EXPECT_TRUE(SameBits(RunOp(kMul, {x, bias}, {}, {}, 2), RunOp(kMul, {x, bias}, {}, {}, 1)));
}

TEST(ElementwiseTest, BackwardSumsWhatWasBroadcast) {
  const Tensor a = FromDoubles({2, 3}, {1, 2, 3, 4, 5, 6}, DType::kF32);
  const Tensor b = FromDoubles({3}, {1, 2, 4}, DType::kF32);
  const Tensor dy = FromDoubles({2, 3}, {1, 1, 1, 2, 2, 2}, DType::kF32);
  std::vector<Tensor> gradients = Backward(kMul, {a, b}, {dy});
  EXPECT_EQ(gradients[0].ToVector<float>(), (std::vector<float>{1, 2, 4, 2, 4, 8}));
  EXPECT_EQ(gradients[1].ToVector<float>(), (std::vector<float>{9, 12, 15}));
  gradients = Backward(kSub, {a, b}, {dy});
  EXPECT_EQ(gradients[0].ToVector<float>(), dy.ToVector<float>());
  EXPECT_EQ(gradients[1].ToVector<float>(), (std::vector<float>{-3, -3, -3}));
}

// dy / b would be 2^17, more than f16 has.
TEST(ElementwiseTest, TheGradientOfADivisorIsInRangeWhereItsSlopeIs) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor a = FromDoubles({2}, {0x1p-13, 0}, dtype);
    const Tensor b = FromDoubles({2}, {0x1p-7, 0x1p-7}, dtype);
    const Tensor dy = FromDoubles({2}, {1024, 1024}, dtype);
    EXPECT_EQ(Backward(kDiv, {a, b}, {dy})[1].ToVector<double>(), (std::vector<double>{-2048, 0}))
        << DTypeName(dtype);
  }
}

// dy / y would be 81920, more than f16 has.
TEST(ElementwiseTest, TheGradientOfSqrtIsInRangeWhereDyByYIsNot) {
  const Tensor x = FromDoubles({2}, {0x1p-24, 4}, DType::kF16);
  const Tensor dy = FromDoubles({2}, {20, 3}, DType::kF16);
  EXPECT_EQ(Backward(kSqrt, {x}, {dy})[0].ToVector<double>(), (std::vector<double>{40960, 0.75}));
}

// y^3 would leave the range at one end or the other, or, subnormal, lose digits.
TEST(ElementwiseTest, TheGradientOfRsqrtGoesThroughNoCube) {
  struct Case {
    DType dtype;
    double x, dy;
    double tolerance;  // relative: y's rounding three times, and that of three products
  };
  const Case cases[] = {{DType::kF16, 1e-4, 0.01, 0x1p-8},    {DType::kF16, 1e-4, 0, 0},
                        {DType::kF16, 3e4, 1000, 0x1p-8},     {DType::kBF16, 1e-30, 1e-10, 0x1p-5},
                        {DType::kF32, 1e-30, 1e-10, 0x1p-19}, {DType::kF64, 1e-220, 1e-50, 0x1p-48}};
  for (const Case& c : cases) {
    const Tensor x = FromDoubles({}, {c.x}, c.dtype);
    const Tensor dy = FromDoubles({}, {c.dy}, c.dtype);
    const double x_value = x.ToVector<double>()[0];
    const double expected = -0.5 * dy.ToVector<double>()[0] / x_value / std::sqrt(x_value);
    EXPECT_NEAR(Backward(kRsqrt, {x}, {dy})[0].ToVector<double>()[0], expected,
                c.tolerance * std::abs(expected))
        << DTypeName(c.dtype) << " at x = " << c.x;
  }
}

TEST(ElementwiseTest, MisuseIsNamed) {
  const Tensor f32 = Uniform({2, 3}, 0, 1);
  const Tensor f64 = Uniform({2, 3}, 0, 1, DType::kF64);
  const Tensor wide = Uniform({4}, 0, 1);
  const Tensor i32 = Tensor::FromValues<int32_t>({2}, {1, 2});
  EXPECT_EQ(MessageOf([&] {
              RunOp(kAdd, {f32, f64});
            }),
            "add: expected operands of one dtype, got f32[2, 3] and f64[2, 3]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kMul, {f32, wide});
            }),
            "mul: f32[2, 3] and f32[4] do not broadcast: counted from the last, their dim 0 is neither equal "
            "nor 1");
  EXPECT_EQ(MessageOf([&] { RunOp(kDiv, {i32, i32}); }), "div: expected a floating dtype, got i32[2]");
  EXPECT_EQ(MessageOf([&] { RunOp(kExp, {i32}); }), "exp: expected a floating dtype, got i32[2]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kGeluGrad, {f32, wide});
            }),
            "gelu_grad: expected operands of one type, got f32[2, 3] and f32[4]");
}

}  // namespace
}  // namespace weft
