// Comparisons and logic.

#include "ops/elementwise/compare.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "ops/elementwise/logical.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"
#include "tests/ops/single_device.h"

namespace weft {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensor FromDoubles(const Shape& shape, const std::vector<double>& values, DType dtype) {
  return CastTensor(Tensor::FromValues<double>(shape, values), dtype, MakeCpuAllocator());
}

struct Comparison {
  const Op<>* op;
  bool (*holds)(double, double);
};
const Comparison kComparisons[] = {{&kEqual, [](double a, double b) { return a == b; }},
                                   {&kNotEqual, [](double a, double b) { return a != b; }},
                                   {&kLess, [](double a, double b) { return a < b; }},
                                   {&kLessEqual, [](double a, double b) { return a <= b; }},
                                   {&kGreater, [](double a, double b) { return a > b; }},
                                   {&kGreaterEqual, [](double a, double b) { return a >= b; }}};

// Every pair of the values, by broadcasting a column and a row.
void ExpectEveryPair(const std::vector<double>& values, DType dtype) {
  const int64_t n = static_cast<int64_t>(values.size());
  const Tensor column = FromDoubles({n, 1}, values, dtype);
  const Tensor row = FromDoubles({n}, values, dtype);
  for (const Comparison& c : kComparisons) {
    const Tensor y = RunOp(*c.op, {column, row});
    ASSERT_EQ(y.TypeString(), TypeString(DType::kBool, {n, n}));
    const std::vector<bool> got = y.ToVector<bool>();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        EXPECT_EQ(got[i * n + j], c.holds(values[i], values[j]))
            << c.op->name() << " " << DTypeName(dtype) << " " << values[i] << " " << values[j];
      }
    }
  }
}

TEST(CompareTest, EveryPairOfEveryDType) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    ExpectEveryPair({0, -0.0, 1, -1, 1.5, kInf, -kInf, kNan, 0x1p-14}, dtype);
  }
  for (DType dtype : {DType::kI32, DType::kI64}) ExpectEveryPair({0, 1, -1, 7, -1048576, 2147483647}, dtype);
  ExpectEveryPair({0, 1, 127, 128, 255}, DType::kU8);
  ExpectEveryPair({0, 1}, DType::kBool);
}

// Neighbours that are one number as a double, or as a float.
TEST(CompareTest, ComparesInTheOperandsOwnType) {
  const int64_t big = int64_t{1} << 53;
  const Tensor a = Tensor::FromValues<int64_t>({1}, {big});
  const Tensor b = Tensor::FromValues<int64_t>({1}, {big + 1});
  EXPECT_FALSE(RunOp(kEqual, {a, b}).ToVector<bool>()[0]);
  EXPECT_TRUE(RunOp(kLess, {a, b}).ToVector<bool>()[0]);
  const Tensor c = Tensor::FromValues<double>({1}, {1});
  const Tensor d = Tensor::FromValues<double>({1}, {1 + 0x1p-52});
  EXPECT_TRUE(RunOp(kLess, {c, d}).ToVector<bool>()[0]);
}

TEST(CompareTest, EverySizeAndStridedOperands) {
  for (int64_t n : {0, 1, 7, 511, 513, 40001}) {
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<double>(i * 7 % 11));
    const Tensor x = FromDoubles({n}, values, DType::kF32);
    const Tensor four = FromDoubles({}, {4}, DType::kF32);
    const std::vector<bool> got = RunOp(kGreater, {x, four}, {}, {}, /*num_threads=*/2).ToVector<bool>();
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(got[i], values[i] > 4) << i;
  }
  const Tensor x = FromDoubles({2, 3}, {1, 2, 3, 4, 5, 6}, DType::kF64);
  const Tensor y = FromDoubles({3, 2}, {1, 5, 2, 5, 0, 6}, DType::kF64);
  EXPECT_EQ(RunOp(kEqual, {x.Transpose(0, 1), y}).ToVector<bool>(),
            (std::vector<bool>{true, false, true, true, false, true}));
}

TEST(CompareTest, NanAndFinite) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    const Tensor x = FromDoubles({5}, {0, -1.5, kInf, -kInf, kNan}, dtype);
    EXPECT_EQ(RunOp(kIsNan, {x}).ToVector<bool>(), (std::vector<bool>{false, false, false, false, true}));
    EXPECT_EQ(RunOp(kIsFinite, {x}).ToVector<bool>(), (std::vector<bool>{true, true, false, false, false}));
  }
  // The largest numbers of f64 are no infinities.
  EXPECT_TRUE(RunOp(kIsFinite, {Tensor::FromValues<double>({1}, {1.7e308})}).ToVector<bool>()[0]);
}

TEST(LogicalTest, TruthTables) {
  const Tensor a = Tensor::FromValues<bool>({2, 1}, {false, true});
  const Tensor b = a.Transpose(0, 1);
  EXPECT_EQ(RunOp(kLogicalAnd, {a, b}).ToVector<bool>(), (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(RunOp(kLogicalOr, {a, b}).ToVector<bool>(), (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(RunOp(kLogicalXor, {a, b}).ToVector<bool>(), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(RunOp(kLogicalNot, {a}).ToVector<bool>(), (std::vector<bool>{true, false}));
}

TEST(CompareTest, MisuseIsNamed) {
  const Tensor f32 = FromDoubles({2}, {0, 1}, DType::kF32);
  const Tensor i32 = FromDoubles({2}, {0, 1}, DType::kI32);
  const Tensor wide = FromDoubles({3}, {0, 1, 2}, DType::kF32);
  EXPECT_EQ(MessageOf([&] {
              RunOp(kLess, {f32, i32});
            }),
            "less: expected operands of one dtype, got f32[2] and i32[2]");
  EXPECT_EQ(MessageOf([&] {
              RunOp(kEqual, {f32, wide});
            }),
            "equal: f32[2] and f32[3] do not broadcast: counted from the last, their dim 0 is neither equal "
            "nor 1");
  EXPECT_EQ(MessageOf([&] { RunOp(kIsNan, {i32}); }), "is_nan: expected a floating dtype, got i32[2]");
  EXPECT_EQ(MessageOf([&] { RunOp(kLogicalAnd, {f32, f32}); }), "logical_and: expected bool, got f32[2]");
}

}  // namespace
}  // namespace weft
