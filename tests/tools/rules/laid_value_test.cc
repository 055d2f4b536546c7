// Laying a value over a mesh and putting it together again, and what the validator's eye must not miss.

#include "tools/rules/laid_value.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor Values(const Shape& shape, const std::vector<double>& values) {
  return Tensor::FromValues<double>(shape, values);
}

std::vector<Tensor> Pieces(const Tensor& value, const Layout& layout, const DeviceMesh& mesh, TermForm form) {
  std::vector<Tensor> pieces;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    pieces.push_back(LaidPiece(value, layout, mesh, mesh.CoordinateOf(rank), form, /*seed=*/3).tensor);
  }
  return pieces;
}

// What one kind of Partial makes of the terms, without laid_value's own arithmetic.
double Reduced(const std::vector<double>& terms, ReduceOp op) {
  double result = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) {
    if (op == ReduceOp::kMax) result = std::isnan(result + terms[i]) ? NAN : std::fmax(result, terms[i]);
    if (op == ReduceOp::kMin) result = std::isnan(result + terms[i]) ? NAN : std::fmin(result, terms[i]);
    if (op == ReduceOp::kProduct) result *= terms[i];
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg) result += terms[i];
  }
  return op == ReduceOp::kAvg ? result / static_cast<double>(terms.size()) : result;
}

TEST(LaidValueTest, TermsReduceToTheValueWhateverItIs) {
  const std::vector<double> values = {1.25, -0.5, 0, 7, kInf, -kInf, NAN};
  const Tensor value = Values({7}, values);
  for (ReduceOp op : kAllReduceOps) {
    for (int ranks : {2, 3, 4}) {
      for (TermForm form : {TermForm::kScattered, TermForm::kKept}) {
        const DeviceMesh mesh({{"a", ranks}});
        const std::vector<Tensor> pieces = Pieces(value, Layout(1, 1).WithPartial(0, op), mesh, form);
        for (size_t i = 0; i < values.size(); ++i) {
          std::vector<double> terms;
          for (const Tensor& piece : pieces) terms.push_back(piece.ToVector<double>()[i]);
          const double result = Reduced(terms, op);
          if (std::isfinite(values[i])) {
            EXPECT_NEAR(result, values[i], 1e-12) << op << " of " << ranks << ", element " << i;
          } else {
            EXPECT_TRUE(result == values[i] || (std::isnan(result) && std::isnan(values[i])))
                << op << " of " << ranks << ", element " << i << ": " << result;
          }
        }
      }
    }
  }
}

TEST(LaidValueTest, ScatteredTermsDifferAndChangeSigns) {
  const DeviceMesh mesh({{"a", 3}});
  const Tensor value = Values({40}, std::vector<double>(40, 0.5));
  for (ReduceOp op : kAllReduceOps) {
    const std::vector<Tensor> pieces =
        Pieces(value, Layout(1, 1).WithPartial(0, op), mesh, TermForm::kScattered);
    int negative = 0;
    int unlike = 0;
    for (size_t i = 0; i < 40; ++i) {
      const double a = pieces[0].ToVector<double>()[i];
      const double b = pieces[1].ToVector<double>()[i];
      negative += a < 0 ? 1 : 0;
      unlike += a != b ? 1 : 0;
    }
    EXPECT_GT(unlike, 20) << op;
    EXPECT_GT(negative, op == ReduceOp::kMin ? -1 : 5) << op;
  }
}

TEST(LaidValueTest, KeptSumsAreWhatReplicateToPartialMakes) {
  const DeviceMesh mesh({{"a", 3}});
  const std::vector<Tensor> pieces =
      Pieces(Values({2}, {4, -kInf}), Layout(1, 1).WithPartial(0), mesh, TermForm::kKept);
  EXPECT_EQ(pieces[0].ToVector<double>(), (std::vector<double>{4, -kInf}));
  EXPECT_EQ(pieces[1].ToVector<double>(), (std::vector<double>{0, 0}));
  EXPECT_EQ(pieces[2].ToVector<double>(), (std::vector<double>{0, 0}));
}

TEST(LaidValueTest, InfinitiesOfTermsHaveOneSign) {
  const DeviceMesh mesh({{"a", 4}});
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct}) {
    int infinite = 0;
    for (const Tensor& piece :
         Pieces(Values({1}, {-kInf}), Layout(1, 1).WithPartial(0, op), mesh, TermForm::kScattered)) {
      infinite += std::isinf(piece.ToVector<double>()[0]) ? 1 : 0;
    }
    EXPECT_EQ(infinite, 1) << op;
  }
}

TEST(LaidValueTest, PiecesOfEveryLayoutDenoteTheValue) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2,b=3");
  std::vector<double> values(5 * 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i));
  for (DType dtype : {DType::kF64, DType::kF32, DType::kI32}) {
    const Tensor value = CastTensor(Values({5, 4}, values), dtype, MakeCpuAllocator());
    for (const char* text : {"[-, -]", "[a, b]", "[b.a, -]", "[a.b, -]", "[-, a] P{b}", "[-, -] P{a,b:max}",
                             "[b, -] P{a:min}", "[-, -] P{a,b}"}) {
      const Layout layout = Layout::Parse(text, mesh);
      const std::vector<Tensor> pieces = Pieces(value, layout, mesh, TermForm::kScattered);
      EXPECT_EQ(DenotedDifference(pieces, value, layout, mesh, {.tolerance = 2e-6}), "") << dtype << text;
    }
  }
}

TEST(LaidValueTest, WhatDoesNotDenoteTheValueIsSeen) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2");
  const Tensor value = Values({2}, {1, 2});
  const Layout whole(1, 1);
  const auto difference = [&](const std::vector<double>& a, const std::vector<double>& b,
                              const Layout& layout, const Closeness& closeness = {}) {
    const Shape shape = {static_cast<int64_t>(a.size())};
    return DenotedDifference({Values(shape, a), Values(shape, b)}, value, layout, mesh, closeness);
  };
  EXPECT_EQ(difference({1, 2}, {1, 2}, whole), "");
  EXPECT_THAT(difference({1, 2}, {1, 2.5}, whole), HasSubstr("ranks 0 and 1 should hold the same"));
  EXPECT_THAT(difference({1, 3}, {1, 3}, whole), HasSubstr("index 1: got 3, expected 2"));
  EXPECT_THAT(difference({2}, {1}, whole.WithShard(0, 0)), HasSubstr("2 of 2 elements"));
  EXPECT_THAT(difference({1, 2}, {0, 1}, whole.WithPartial(0)), HasSubstr("got 3, expected 2"));
  EXPECT_EQ(difference({1, 0}, {0, 2}, whole.WithPartial(0)), "");
  EXPECT_EQ(difference({2, 0}, {0, 4}, whole.WithPartial(0, ReduceOp::kAvg)), "");
  EXPECT_THAT(difference({1, 2}, {1, NAN}, whole.WithPartial(0, ReduceOp::kMax)), HasSubstr("got nan"));
}

TEST(LaidValueTest, SignedZerosAndInfinitiesCountAsTold) {
  const Tensor zero = Values({1}, {0.0});
  const Tensor negative = Values({1}, {-0.0});
  EXPECT_EQ(Difference(negative, zero, {}), "");
  EXPECT_THAT(Difference(negative, zero, {.signed_zeros = true}), HasSubstr("got -0, expected 0"));
  const Tensor infinite = Values({1}, {kInf});
  const Tensor nan = Values({1}, {NAN});
  EXPECT_THAT(Difference(nan, infinite, {}), HasSubstr("got nan, expected inf"));
  EXPECT_EQ(Difference(nan, infinite, {.may_cancel = true}), "");
  EXPECT_NE(Difference(infinite, nan, {.may_cancel = true}), "");
  EXPECT_NE(Difference(nan, zero, {.may_cancel = true}), "");
  EXPECT_NE(Difference(zero, infinite, {.may_cancel = true}), "");
}

}  // namespace
}  // namespace weft
