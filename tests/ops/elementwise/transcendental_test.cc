// sin, cos, sigmoid, erf; magnitudes and signs.

#include "ops/elementwise/transcendental.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "ops/elementwise/magnitude.h"
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

Tensor Uniform(const Shape& shape, double low, double high, DType dtype = DType::kF32) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(low, high);
  std::vector<double> values(shape.num_elements());
  for (double& value : values) value = uniform(random);
  return FromDoubles(shape, values, dtype);
}

std::vector<double> Elements(const Tensor& x) { return x.ToVector<double>(); }

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Case {
  const Op<>* op;
  double (*f)(double);
  double low, high;
  double absolute, relative;  // of f32
};
const Case kCases[] = {{&kSin, std::sin, -20, 20, 2e-7, 0},     {&kCos, std::cos, -20, 20, 2e-7, 0},
                       {&kSin, std::sin, -8192, 8192, 2e-7, 0}, {&kCos, std::cos, -8192, 8192, 2e-7, 0},
                       {&kSin, std::sin, -1e-3, 1e-3, 0, 4e-7},  // small angles keep their digits
                       {&kSin, std::sin, -1e30, 1e30, 2e-7, 0}, {&kCos, std::cos, 8000, 9000, 2e-7, 0},
                       {&kSigmoid, Sigmoid, -86, 20, 0, 5e-7},  {&kErf, std::erf, -4, 4, 0, 2e-7}};

TEST(TranscendentalTest, MatchesLibmAtEverySize) {
  for (const Case& c : kCases) {
    for (int64_t n : {0, 1, 7, 17, 40001}) {
      const Tensor x = Uniform({n}, c.low, c.high);
      const std::vector<double> from = Elements(x);
      const std::vector<double> got = Elements(RunOp(*c.op, {x}));
      ASSERT_EQ(got.size(), from.size());
      for (size_t i = 0; i < got.size(); ++i) {
        const double expected = c.f(from[i]);
        ASSERT_NEAR(got[i], expected, c.absolute + c.relative * std::abs(expected))
            << c.op->name() << "(" << from[i] << ")";
      }
    }
  }
}

TEST(TranscendentalTest, OtherDTypes) {
  for (const Case& c : kCases) {
    for (DType dtype : {DType::kF64, DType::kBF16, DType::kF16}) {
      const Tensor x = Uniform({7, 130}, -4, 4, dtype);
      std::vector<double> expected;
      for (double value : Elements(x)) expected.push_back(c.f(value));
      const double tolerance = dtype == DType::kF64 ? 1e-15 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
      EXPECT_TRUE(AllClose(RunOp(*c.op, {x}), FromDoubles(x.shape(), expected, dtype), tolerance))
          << c.op->name() << " " << x.TypeString();
    }
  }
}

TEST(TranscendentalTest, SpecialValues) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const Tensor x = FromDoubles({7}, {kNan, kInf, -kInf, 0, -0.0, 1e4, -1e4}, dtype);
    const std::vector<double> from = Elements(x);
    for (const Op<>* op : {&kSin, &kCos}) {
      const Tensor y = RunOp(*op, {x});
      const std::vector<double> got = Elements(y);
      for (int i : {0, 1, 2}) EXPECT_TRUE(std::isnan(got[i])) << op->name() << " " << from[i];
      const bool is_sin = op == &kSin;
      EXPECT_EQ(got[3], is_sin ? 0 : 1);
      EXPECT_EQ(std::signbit(got[4]), is_sin);
      const double expected = is_sin ? std::sin(from[5]) : std::cos(from[5]);
      EXPECT_NEAR(got[5], expected, dtype == DType::kBF16 ? 0x1p-8 : 1e-7);
      EXPECT_EQ(got[6], is_sin ? -got[5] : got[5]);
    }
    EXPECT_TRUE(AllClose(RunOp(kSigmoid, {x}), FromDoubles({7}, {kNan, 1, 0, 0.5, 0.5, 1, 0}, dtype), 0));
    EXPECT_TRUE(AllClose(RunOp(kErf, {x}), FromDoubles({7}, {kNan, 1, -1, 0, 0, 1, -1}, dtype), 0));
    const Tensor ones = FromDoubles({7}, {1, 1, 1, 1, 1, 1, 1}, dtype);
    EXPECT_TRUE(AllClose(RunOp(kErfGrad, {x, ones}),
                         FromDoubles({7}, {kNan, 0, 0, M_2_SQRTPI, M_2_SQRTPI, 0, 0}, dtype), 1e-7));
  }
}

// An element's bits depend on it alone, though a large neighbour takes another path.
TEST(TranscendentalTest, BitsDependNeitherOnThreadsNorOnNeighbours) {
  const Tensor near = Uniform({40001}, -8000, 8000);
  const Tensor far = Uniform({40001}, -9000, 9000);
  for (const Op<>* op : {&kSin, &kCos, &kSigmoid, &kErf}) {
    for (const Tensor& x : {near, far}) {
      const Tensor y = RunOp(*op, {x}, {}, {}, /*num_threads=*/1);
      EXPECT_TRUE(SameBits(RunOp(*op, {x}, {}, {}, /*num_threads=*/2), y)) << op->name();
      for (const auto& [start, length] :
           std::vector<std::pair<int64_t, int64_t>>{{5, 37}, {6, 1}, {101, 9}}) {
        const Tensor piece = CloneTensor(x.Slice(0, start, length), MakeCpuAllocator());
        EXPECT_TRUE(SameBits(RunOp(*op, {piece}), CloneTensor(y.Slice(0, start, length), MakeCpuAllocator())))
            << op->name();
      }
    }
  }
}

TEST(TranscendentalTest, FusedDerivatives) {
  const Tensor x = Uniform({40001}, -6, 6);
  const Tensor dy = Uniform({40001}, -3, 3);
  const Tensor y = RunOp(kSigmoid, {x});
  const std::vector<double> x_values = Elements(x), dy_values = Elements(dy);
  const std::vector<double> sigmoid = Elements(RunOp(kSigmoidGrad, {y, dy}));
  const std::vector<double> erf = Elements(RunOp(kErfGrad, {x, dy}));
  for (size_t i = 0; i < x_values.size(); ++i) {
    const double s = Sigmoid(x_values[i]);
    ASSERT_NEAR(sigmoid[i], dy_values[i] * s * (1 - s), 2e-7 * std::abs(dy_values[i])) << x_values[i];
    ASSERT_NEAR(erf[i], dy_values[i] * M_2_SQRTPI * std::exp(-x_values[i] * x_values[i]),
                2e-6 * std::abs(dy_values[i]))
        << x_values[i];
  }
}

// At the next number above 1/2, where the slope 1 - 2 y is what two nearly equal numbers differ by.
TEST(TranscendentalTest, TheSecondDerivativeOfSigmoidKeepsItsDigits) {
  struct Precision {
    DType dtype;
    double epsilon;
  };
  const Precision precisions[] = {
      {DType::kBF16, 0x1p-7}, {DType::kF16, 0x1p-10}, {DType::kF32, 0x1p-23}, {DType::kF64, 0x1p-52}};
  for (const auto& [dtype, epsilon] : precisions) {
    const Tensor y = FromDoubles({1}, {0.5 * (1 + epsilon)}, dtype);
    const Tensor dy = FromDoubles({1}, {1.5}, dtype);
    const Tensor g = FromDoubles({1}, {1}, dtype);
    EXPECT_EQ(Elements(Backward(kSigmoidGrad, {y, dy}, {g})[0])[0], -1.5 * epsilon) << DTypeName(dtype);
  }
}

TEST(MagnitudeTest, AbsAndSign) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor x = FromDoubles({7}, {-1.5, 2, 0, -0.0, kInf, -kInf, kNan}, dtype);
    const Tensor y = RunOp(kAbs, {x});
    EXPECT_TRUE(AllClose(y, FromDoubles({7}, {1.5, 2, 0, 0, kInf, kInf, kNan}, dtype), 0));
    EXPECT_FALSE(std::signbit(Elements(y)[3]));
    EXPECT_EQ(Elements(RunOp(kSign, {x})), (std::vector<double>{-1, 1, 0, 0, 1, -1, 0}));
    const Tensor dy = FromDoubles({7}, {1, 2, 3, 4, 5, 6, 7}, dtype);
    EXPECT_EQ(Elements(Backward(kAbs, {x}, {dy})[0]), (std::vector<double>{-1, 2, 0, 0, 5, -6, 0}));
  }
  const int32_t min = std::numeric_limits<int32_t>::min();
  const Tensor whole = Tensor::FromValues<int32_t>({4}, {-3, 0, 8, min});
  EXPECT_EQ(RunOp(kAbs, {whole}).ToVector<int32_t>(), (std::vector<int32_t>{3, 0, 8, min}));
  EXPECT_EQ(RunOp(kSign, {whole}).ToVector<int32_t>(), (std::vector<int32_t>{-1, 0, 1, -1}));
}

TEST(TranscendentalTest, MisuseIsNamed) {
  const Tensor i32 = FromDoubles({2}, {0, 1}, DType::kI32);
  EXPECT_EQ(MessageOf([&] { RunOp(kSin, {i32}); }), "sin: expected a floating dtype, got i32[2]");
  EXPECT_EQ(MessageOf([&] { RunOp(kSigmoid, {i32}); }), "sigmoid: expected a floating dtype, got i32[2]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kAbs, {FromDoubles({2}, {0, 1}, DType::kU8)});
            }),
            "abs: expected a floating, i32 or i64 dtype, got u8[2]");
}

}  // namespace
}  // namespace weft
