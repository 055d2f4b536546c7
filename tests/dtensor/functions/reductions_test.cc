// Reductions, scans, sort and top-k along dims that are split: the same values and gradients as on one
// device, and what moves is their statistics.

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using Function = std::function<DTensor(const DTensor&)>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Named {
  std::string name;
  Function function;
};

// Of x [r, n], along the dim given.
std::vector<Named> Differentiable(int dim) {
  return {
      {"Max", [=](const DTensor& x) { return Max(x, {dim}); }},
      {"Min of all", [](const DTensor& x) { return Min(x); }},
      {"Prod", [=](const DTensor& x) { return Prod(x, {dim}); }},
      {"Prod of all", [](const DTensor& x) { return Prod(x, {}, /*keep_dims=*/true); }},
      {"Var", [=](const DTensor& x) { return Var(x, {dim}); }},
      {"Var of all", [](const DTensor& x) { return Var(x, {}, {.correction = 0}); }},
      {"Std", [=](const DTensor& x) { return Std(x, {dim}, {.keep_dims = true}); }},
      {"VarMean", [=](const DTensor& x) { return Sub(VarMean(x, {dim}).variance, VarMean(x, {dim}).mean); }},
      {"Mean of VarMean", [](const DTensor& x) { return VarMean(x, {}, {.keep_dims = true}).mean; }},
      {"Norm", [=](const DTensor& x) { return Norm(x, 2, {dim}); }},
      {"Norm of 1", [=](const DTensor& x) { return Norm(x, 1, {dim}); }},
      {"Norm of inf", [=](const DTensor& x) { return Norm(x, kInf, {dim}, /*keep_dims=*/true); }},
      {"Norm of -inf", [=](const DTensor& x) { return Norm(x, -kInf); }},
      {"Norm of 3", [](const DTensor& x) { return Norm(x, 3); }},
      {"LogSumExp", [=](const DTensor& x) { return LogSumExp(x, {dim}); }},
      {"LogSumExp of all", [](const DTensor& x) { return LogSumExp(x, {}, /*keep_dims=*/true); }},
      {"CumSum", [=](const DTensor& x) { return CumSum(x, dim); }},
      {"CumProd", [=](const DTensor& x) { return CumProd(x, dim); }},
      {"Sort", [=](const DTensor& x) { return Sort(x, dim).values; }},
      {"Sort down", [=](const DTensor& x) { return Sort(x, dim, /*descending=*/true).values; }},
      {"TopK", [=](const DTensor& x) { return TopK(x, 1, {.dim = dim}).values; }},
      {"TopK of least", [=](const DTensor& x) { return TopK(x, 1, {.dim = dim, .largest = false}).values; }},
  };
}

std::vector<Named> Discrete(int dim) {
  return {
      {"Argmax", [=](const DTensor& x) { return Argmax(x, dim); }},
      {"Argmin", [=](const DTensor& x) { return Argmin(x, dim, /*keep_dim=*/true); }},
      {"Any", [=](const DTensor& x) { return Any(x, {dim}); }},
      {"All", [](const DTensor& x) { return All(x); }},
      {"Sort", [=](const DTensor& x) { return Sort(x, dim).indices; }},
      {"TopK", [=](const DTensor& x) { return TopK(x, 1, {.dim = dim, .largest = false}).indices; }},
  };
}

struct Result {
  Tensor value;
  Tensor gradient;
};

// The value, and the gradient of its elements weighed by fixed numbers.
Result Evaluate(const DTensor& x, const Function& function, bool differentiate) {
  const DTensor leaf = differentiate ? x.RequiresGrad() : x;
  const DTensor y = function(leaf);
  Result result;
  result.value = y.FullTensor();
  if (!differentiate) return result;
  const DTensor weights = Lay(x.context(), RandomF64(y.shape(), 11), Layout(y.ndim(), y.layout().num_axes()));
  Backward(Sum(y * weights));
  result.gradient = leaf.grad().FullTensor();
  return result;
}

Result OnOneDevice(const Tensor& x, const Function& function, bool differentiate) {
  Result result;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    result = Evaluate(Lay(context, x, Layout(x.ndim(), 0)), function, differentiate);
  });
  return result;
}

struct Case {
  std::string mesh;
  std::string layout;
  Shape shape;
};

// Even, uneven, with empty pieces, nested, beside a split dim, and Partial over another axis.
const Case kCases[] = {{"a=2", "[-, a]", {3, 8}},       {"a=2", "[-, a]", {2, 5}},
                       {"a=3", "[-, a]", {3, 7}},       {"a=3", "[-, a]", {2, 2}},
                       {"a=3", "[a, -]", {4, 3}},       {"a=2", "[-, a]", {2, 1}},
                       {"a=2,b=2", "[b, a]", {3, 5}},   {"a=2,b=2", "[-, a.b]", {2, 5}},
                       {"a=2,b=2", "[-, b.a]", {2, 3}}, {"a=2,b=2", "[-, a] P{b}", {2, 5}}};

std::string Text(const Case& c, const Named& named, int dim) {
  return named.name + " along " + std::to_string(dim) + " of " + c.shape.ToString() + " " + c.layout +
         " on " + c.mesh;
}

TEST(ReductionsTest, ValuesAndGradientsAreThoseOfOneDevice) {
  for (const Case& c : kCases) {
    const Tensor x = RandomF64(c.shape, 5, -2, 2);
    std::vector<std::pair<Named, Result>> expected;
    for (int dim : {0, 1}) {
      for (const Named& named : Differentiable(dim)) {
        expected.push_back({{Text(c, named, dim), named.function}, OnOneDevice(x, named.function, true)});
      }
    }
    OnMesh(c.mesh, [&](const IntrusivePtr<MeshContext>& context) {
      // A leaf cannot be Partial, but what is made of it can.
      const Layout layout = Layout::Parse(c.layout, context->mesh());
      Layout rest = layout;
      for (int axis : layout.PartialAxes()) rest = rest.WithReplicate(axis);
      for (const auto& [named, one] : expected) {
        const auto laid = [&, &function = named.function](const DTensor& leaf) {
          return function(leaf.Redistribute(layout));
        };
        const Result result = Evaluate(Lay(context, x, rest), laid, true);
        EXPECT_TRUE(AllClose(result.value, one.value, 1e-12)) << named.name;
        EXPECT_TRUE(AllClose(result.gradient, one.gradient, 1e-11)) << named.name << ", gradient";
        // Terms of changing signs and no symmetry.
        const Tensor again = Evaluate(Lay(context, x, layout), named.function, false).value;
        EXPECT_TRUE(AllClose(again, one.value, 1e-11)) << named.name;
      }
    });
  }
}

// Ties, infinities and NaN; integers and bools. Bit by bit.
TEST(ReductionsTest, IndicesAndBoolsAreThoseOfOneDevice) {
  for (const Case& c : kCases) {
    std::vector<double> values = RandomF64(c.shape, 9, 0, 3).ToVector<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = i % 7 == 5 ? kNan : i % 7 == 3 ? -kInf : std::floor(values[i]);
    }
    const bool partial = Layout::Parse(c.layout, DeviceMesh::Parse(c.mesh)).HasPartial();
    for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI32, DType::kI64, DType::kBool}) {
      if (partial) continue;  // terms of NaN and infinity are none of them
      const Tensor x = FromDoubles(dtype, c.shape, values);
      std::vector<std::pair<Named, Result>> expected;
      for (int dim : {0, 1}) {
        for (const Named& named : Discrete(dim)) {
          expected.push_back({{Text(c, named, dim), named.function}, OnOneDevice(x, named.function, false)});
        }
      }
      OnMesh(c.mesh, [&](const IntrusivePtr<MeshContext>& context) {
        for (const auto& [named, one] : expected) {
          const Result result = Evaluate(Lay(context, x, c.layout), named.function, false);
          EXPECT_TRUE(SameBits(result.value, one.value)) << named.name << " " << x.TypeString();
        }
      });
    }
  }
}

// What a dim holds that is empty, or elements that are not ordinary.
TEST(ReductionsTest, EmptyAndExtremeRows) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const auto full = [&](const Shape& shape, const std::vector<double>& values, const Function& function) {
      const DTensor y = function(Lay(context, FromDoubles(DType::kF32, shape, values), "[-, a]"));
      return y.FullTensor();
    };
    const auto floats = [](const Shape& shape, const std::vector<double>& values) {
      return FromDoubles(DType::kF32, shape, values);
    };
    const Function log_sum_exp = [](const DTensor& x) { return LogSumExp(x, {1}); };
    EXPECT_TRUE(SameBits(full({2, 0}, {}, log_sum_exp), floats({2}, {-kInf, -kInf})));
    EXPECT_TRUE(AllClose(full({3, 2}, {-kInf, -kInf, kInf, 1, kNan, 2}, log_sum_exp),
                         floats({3}, {-kInf, kInf, kNan}), 0));
    EXPECT_TRUE(
        SameBits(full({2, 0}, {}, [](const DTensor& x) { return Prod(x, {1}); }), floats({2}, {1, 1})));
    EXPECT_TRUE(
        AllClose(full({1, 2}, {1, 2}, [](const DTensor& x) { return Var(x, {1}, {.correction = 2}); }),
                 floats({1}, {kInf}), 0));
    EXPECT_TRUE(
        AllClose(full({1, 1}, {1}, [](const DTensor& x) { return Std(x, {1}); }), floats({1}, {kNan}), 0));
    EXPECT_TRUE(
        SameBits(full({1, 0}, {}, [](const DTensor& x) { return CumSum(x, 1); }), floats({1, 0}, {})));
    // Squares overflow f32, on either rank and in their sum; the norm does not.
    EXPECT_TRUE(AllClose(full({1, 2}, {3e30, 4e30}, [](const DTensor& x) { return Norm(x, 2, {1}); }),
                         floats({1}, {5e30f}), 1e-6));
    // So do those of deviations, whose root does not; and their sum, whose mean does not.
    for (const double deviation : {1e20, 1e-25}) {
      EXPECT_TRUE(AllClose(full({1, 2}, {deviation, -deviation},
                                [](const DTensor& x) { return Std(x, {1}, {.correction = 0}); }),
                           floats({1}, {deviation}), 0));
    }
    std::vector<double> wide(100000, 1e17);
    std::fill_n(wide.begin(), 50000, -1e17);
    EXPECT_TRUE(AllClose(full({1, 100000}, wide, [](const DTensor& x) { return Var(x, {1}); }),
                         floats({1}, {1.00001e34}), 1e-6));
    EXPECT_FALSE(full({1, 0}, {}, [](const DTensor& x) { return Any(x); }).ToVector<bool>()[0]);
    EXPECT_TRUE(full({1, 0}, {}, [](const DTensor& x) { return All(x); }).ToVector<bool>()[0]);
  });
}

TEST(ReductionsTest, VarMeanGivesWhatVarAndMeanDo) {
  const Tensor full = RandomF64({3, 4, 5}, 9);
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    for (const std::vector<int>& dims : {std::vector<int>{}, {1}, {0, -1}}) {
      for (const bool keep_dims : {false, true}) {
        const VarianceOptions options = {.correction = 0.5, .keep_dims = keep_dims};
        const DTensor x = Lay(context, full, "[-, -, -]").RequiresGrad();
        const DTensor z = Lay(context, full, "[-, -, -]").RequiresGrad();
        const auto [variance, mean] = VarMean(x, dims, options);
        const DTensor var_alone = Var(z, dims, options), mean_alone = Mean(z, dims, keep_dims);
        EXPECT_TRUE(SameBits(variance.FullTensor(), var_alone.FullTensor()));
        EXPECT_TRUE(AllClose(mean.FullTensor(), mean_alone.FullTensor(), 1e-15));
        Backward(Sum(variance * 3 + Exp(mean)));
        Backward(Sum(var_alone * 3 + Exp(mean_alone)));
        EXPECT_TRUE(AllClose(x.grad().FullTensor(), z.grad().FullTensor(), 1e-14));
      }
    }
    const VarianceAndMean halves = VarMean(Full(context, DType::kBF16, {2, 8}, 1.5), {1});
    EXPECT_EQ(halves.variance.ToString(), "bf16[2] [-]");
    EXPECT_EQ(halves.mean.ToString(), "bf16[2] [-]");
    EXPECT_EQ(halves.mean.FullTensor().ToVector<float>(), (std::vector<float>{1.5, 1.5}));
    EXPECT_THAT(ErrorOf([&] { VarMean(Lay(context, full, "[-, -, -]"), {3}); }),
                testing::HasSubstr("VarMean"));
    EXPECT_THAT(ErrorOf([&] {
                  VarMean(Lay(context, full, "[-, -, -]"), {1, -2});
                }),
                testing::HasSubstr("VarMean: dim -2 stands twice in {1, -2}"));
    EXPECT_THAT(ErrorOf([&] {
                  Sum(Lay(context, full, "[-, -, -]"), {0, 0});
                }),
                testing::HasSubstr("Sum: dim 0 stands twice in {0, 0}"));
  });
}

// A product's gradient where elements are zero, none a rank and one of many.
TEST(ReductionsTest, GradientOfAProductWithZeros) {
  OnMesh("a=3", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor x = Tensor::FromValues<double>({3, 4}, {2, 0, 3, 5, 0, 7, 0, 1, 2, 3, 4, 5});
    const DTensor leaf = Lay(context, x, "[-, a]").RequiresGrad();
    Backward(Sum(Prod(leaf, {1})));
    EXPECT_THAT(leaf.grad().FullTensor().ToVector<double>(),
                testing::ElementsAre(0, 30, 0, 0, 0, 0, 0, 0, 60, 40, 30, 24));
  });
}

// As on one device, where it goes on in double: what cancels in a later piece is still there.
TEST(ReductionsTest, ACumSumOverPiecesLosesNoDigits) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, Tensor::FromValues<float>({4}, {1e8, 1, -1e8, 0}), "[a]");
    EXPECT_THAT(CumSum(x, 0).FullTensor().ToVector<float>(), testing::ElementsAre(1e8, 1e8, 1, 1));
    // The gradient, which goes from the end.
    const DTensor leaf = Lay(context, Tensor::FromValues<float>({4}, {0, 0, 0, 0}), "[a]").RequiresGrad();
    Backward(CumSum(leaf, 0), Lay(context, Tensor::FromValues<float>({4}, {0, -1e8, 1, 1e8}), "[a]"));
    EXPECT_THAT(leaf.grad().FullTensor().ToVector<float>(), testing::ElementsAre(1, 1, 1e8, 1e8));
  });
}

struct Traffic {
  Function function;
  int64_t forward = 0;
  int64_t backward = 0;
};

// Bytes that a group of two moves for x f64 [4, 101], its last dim split: an all-reduce of S bytes is 2 S, a
// gather of S bytes in all is S. Gathering x would be 3232.
TEST(ReductionsTest, OnlyStatisticsMove) {
  constexpr int64_t kRows = 4;
  constexpr int64_t kReduced = 2 * kRows * 8;   // one f64 a row, all-reduced
  constexpr int64_t kGathered = kRows * 2 * 8;  // one f64 a row and piece, gathered
  constexpr int64_t kTopThree = kRows * 2 * 3 * (8 + 8);
  const std::map<std::string, Traffic> traffic = {
      {"Max", {[](const DTensor& x) { return Max(x, {1}); }, kReduced, 2 * kReduced}},
      {"Prod", {[](const DTensor& x) { return Prod(x, {1}); }, kReduced, kGathered}},
      {"Var", {[](const DTensor& x) { return Var(x, {1}); }, 2 * kReduced, 0}},
      {"Std", {[](const DTensor& x) { return Std(x, {1}); }, 2 * kReduced, 0}},
      {"Norm", {[](const DTensor& x) { return Norm(x, 2, {1}); }, kReduced, 0}},
      {"LogSumExp", {[](const DTensor& x) { return LogSumExp(x, {1}); }, 2 * kReduced, 0}},
      {"CumSum", {[](const DTensor& x) { return CumSum(x, 1); }, kGathered, kGathered}},
      {"TopK", {[](const DTensor& x) { return TopK(x, 3).values; }, kTopThree, 0}},
      {"Argmax", {[](const DTensor& x) { return Argmax(x, 1); }, 2 * kReduced, -1}},
      {"Any", {[](const DTensor& x) { return Any(x, {1}); }, 2 * kRows, -1}},
  };
  const Tensor values = RandomF64({kRows, 101}, 3);
  OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
    Ledger& ledger = context->world().ledger();
    const bool recorder = context->coordinate()[0] == 0;  // the first of a group records its bytes
    for (const auto& [name, t] : traffic) {
      const bool differentiate = t.backward >= 0;
      const DTensor x = Lay(context, values, "[-, a]");
      const DTensor leaf = differentiate ? x.RequiresGrad() : x;
      ledger.Clear();
      const DTensor y = t.function(leaf);
      // Where y lies whole on every rank, or as x does; a Partial is reduced as its reader would.
      const Layout rest = y.layout().HasPartial() ? Layout(y.ndim(), 1) : y.layout();
      const DTensor settled = y.Redistribute(rest);
      EXPECT_EQ(ledger.num_bytes(), recorder ? t.forward : 0) << name << ": " << LedgerText(*context);
      if (!differentiate) continue;
      const DTensor sum = Sum(settled);
      ledger.Clear();
      Backward(sum);
      EXPECT_EQ(leaf.grad().layout(), x.layout()) << name;
      EXPECT_EQ(ledger.num_bytes(), recorder ? t.backward : 0) << name << ": " << LedgerText(*context);
    }
  });
}

// Where the candidates would be more than x, x is gathered; a sort always gathers.
TEST(ReductionsTest, GathersWhereThatIsLess) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF32, {4, 10}), "[-, a]");
    const bool recorder = context->coordinate()[0] == 0;
    TopK(x, 3);
    EXPECT_EQ(context->world().ledger().num_bytes(), recorder ? 4 * 10 * 4 : 0) << LedgerText(*context);
    context->world().ledger().Clear();
    EXPECT_EQ(LayoutText(Sort(x).indices), "[-, -]");
    EXPECT_EQ(context->world().ledger().num_bytes(), recorder ? 4 * 10 * 4 : 0) << LedgerText(*context);
    // Along the other dim nothing moves.
    context->world().ledger().Clear();
    EXPECT_EQ(LayoutText(Sort(x, 0).values), "[-, a]");
    EXPECT_EQ(LayoutText(TopK(x, 2, {.dim = 0}).indices), "[-, a]");
    EXPECT_EQ(LayoutText(CumSum(x, 0)), "[-, a]");
    EXPECT_EQ(LayoutText(Argmax(x, 0)), "[a]");
    EXPECT_EQ(LayoutText(Var(x, {0})), "[a]");
    EXPECT_EQ(context->world().ledger().num_bytes(), 0) << LedgerText(*context);
  });
}

TEST(ReductionsTest, LayoutsOfResults) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF32, {4, 10}), "[-, a]");
    EXPECT_EQ(LayoutText(Max(x, {1})), "[-] P{a:max}");
    EXPECT_EQ(LayoutText(Prod(x, {1})), "[-] P{a:product}");
    EXPECT_EQ(LayoutText(Var(x, {1})), "[-] P{a}");
    EXPECT_EQ(LayoutText(Std(x, {1})), "[-]");
    EXPECT_EQ(LayoutText(Argmax(x, 1)), "[-]");
    EXPECT_EQ(LayoutText(CumSum(x, 1)), "[-, a]");
    EXPECT_EQ(LayoutText(TopK(x, 1).values), "[-, -]");
    EXPECT_EQ(LayoutText(Any(x, {1})), "[-] P{a:max}");
    EXPECT_EQ(Argmax(x, 1).dtype(), DType::kI64);
    EXPECT_EQ(Any(x).dtype(), DType::kBool);
    EXPECT_EQ(Std(Cast(x, DType::kBF16), {1}).dtype(), DType::kBF16);
  });
}

}  // namespace
}  // namespace weft
