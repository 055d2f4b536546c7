// Functions that reshape, move, select and scatter: on every layout as on one device, and what they move.

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/functions/rearrange.h"
#include "dtensor/inspect/comm_report.h"
#include "gmock/gmock.h"
#include "tests/dtensor/functions/index_function_cases.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Context = IntrusivePtr<MeshContext>;

Tensor IndexOf(const IndexFunctionCase& c) {
  std::vector<int64_t> values(c.index.num_elements());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int64_t>(c.distinct ? (3 * i + 1) % c.limit : (i * i + 2 * i + 4) % c.limit);
  }
  return Tensor::FromValues<int64_t>(c.index, values);
}

struct Results {
  Tensor value;
  Tensor x_grad;
  Tensor s_grad;
};

// Whole numbers throughout: sums are exact, so every layout gives the same bits but for the sign of a zero.
Results Run(const IndexFunctionCase& c, const DTensor& x, const DTensor& s, const DTensor& index,
            bool with_gradients) {
  Results results;
  if (!with_gradients) {
    results.value = c.call(x, s, index).FullTensor();
    return results;
  }
  const DTensor x_leaf = x.RequiresGrad();
  const DTensor s_leaf = s.RequiresGrad();
  const DTensor y = c.call(x_leaf, s_leaf, index);
  results.value = y.FullTensor();
  const Context& context = x.context();
  const Layout whole(y.ndim(), context->mesh().num_axes());
  const DTensor weights = Lay(context, WholeNumbers(DType::kF64, y.shape()), whole);
  Backward(Sum(Mul(y, weights)));
  EXPECT_EQ(x_leaf.grad().layout(), x.layout()) << c.name;
  results.x_grad = x_leaf.grad().FullTensor();
  if (s_leaf.grad().defined()) results.s_grad = s_leaf.grad().FullTensor();
  return results;
}

Results RunOn(const Context& context, const IndexFunctionCase& c, const Layout& x, const Layout& s,
              const Layout& index, bool with_gradients) {
  return Run(c, Lay(context, WholeNumbers(DType::kF64, c.x), x),
             Lay(context, WholeNumbers(DType::kF64, c.s), s), Lay(context, IndexOf(c), index),
             with_gradients);
}

void ExpectSame(const Results& actual, const Results& expected, double tolerance, const std::string& what) {
  EXPECT_TRUE(AllClose(actual.value, expected.value, tolerance)) << what;
  if (actual.x_grad.defined()) {
    EXPECT_TRUE(AllClose(actual.x_grad, expected.x_grad, tolerance)) << what << ", dx";
  }
  if (actual.s_grad.defined()) {
    EXPECT_TRUE(AllClose(actual.s_grad, expected.s_grad, tolerance)) << what << ", ds";
  }
}

TEST(IndexFunctionsTest, EveryLayoutGivesTheValuesAndGradientsOfOneDevice) {
  for (const IndexFunctionCase& c : IndexFunctionCases()) {
    Results expected;
    OnMesh("", [&](const Context& context) {
      expected = RunOn(context, c, Layout(c.x.ndim(), 0), Layout(c.s.ndim(), 0), Layout(c.index.ndim(), 0),
                       /*with_gradients=*/true);
    });
    for (const char* mesh_text : {"a=2", "a=3", "a=2,b=2"}) {
      OnMesh(mesh_text, [&](const Context& context) {
        std::mt19937_64 random(17);
        const DeviceMesh& mesh = context->mesh();
        for (const Layout& x : AllLayouts(mesh, c.x.ndim(), {ReduceOp::kSum, ReduceOp::kMax})) {
          const Layout s = RandomLayout(mesh, c.s.ndim(), random, /*partial=*/false);
          const Layout index = RandomLayout(mesh, c.index.ndim(), random, /*partial=*/false);
          const std::string what = std::string(c.name) + " of " + x.ToString(mesh) + ", " + s.ToString(mesh) +
                                   ", " + index.ToString(mesh) + " on " + mesh.ToString();
          ExpectSame(RunOn(context, c, x, s, index, /*with_gradients=*/!x.HasPartial()), expected,
                     c.tolerance, what);
        }
      });
    }
  }
}

TEST(IndexFunctionsTest, IntegersAndBools) {
  OnMesh("a=3", [](const Context& context) {
    for (DType dtype : {DType::kI32, DType::kI64, DType::kU8, DType::kBool, DType::kBF16}) {
      std::vector<double> values = {1, 0, 3, 1, 0, 0, 2};
      const Tensor full = FromDoubles(dtype, {7}, values);
      const DTensor x = Lay(context, full, "[a]");
      const auto expect = [&](const DTensor& y, const std::vector<int>& from) {
        std::vector<double> expected;
        for (int i : from) expected.push_back(i < 0 ? 1 : values[i]);
        EXPECT_TRUE(
            SameBits(y.FullTensor(), FromDoubles(dtype, {static_cast<int64_t>(from.size())}, expected)))
            << dtype << " " << y.ToString();
      };
      expect(Slice(x, 0, 2, 4), {2, 3, 4, 5});
      expect(Slice(x, 0, 2, 2), {2, 3});
      expect(Flip(x, {0}), {6, 5, 4, 3, 2, 1, 0});
      expect(Roll(x, 3, 0), {4, 5, 6, 0, 1, 2, 3});
      constexpr int64_t kFar = std::numeric_limits<int64_t>::max();
      expect(SliceScatter(x, Slice(x, 0, 2, 1), 0, {.start = 5, .step = kFar}), {0, 1, 2, 3, 4, 2, 6});
      expect(Pad(x, {{1, 2}}, 1), {-1, 0, 1, 2, 3, 4, 5, 6, -1, -1});
      expect(Concat({x, x}, 0), {0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6});
      const DTensor index = Lay(context, Tensor::FromValues<int64_t>({3}, {6, 0, 2}), "[-]");
      expect(IndexSelect(x, 0, index), {6, 0, 2});
      expect(Gather(x, 0, index), {6, 0, 2});
      std::vector<double> twice = values;
      twice.insert(twice.end(), values.begin(), values.end());
      const Tensor expanded = FromDoubles(dtype, {2, 7}, twice);
      EXPECT_TRUE(SameBits(Expand(x, {2, -1}).FullTensor(), expanded)) << dtype;
      EXPECT_TRUE(SameBits(Expand(Unsqueeze(x, 0), {2, 7}).FullTensor(), expanded)) << dtype;
    }
  });
}

// A -0.0 to which nothing is added, or -0.0 alone, stays one, as in PyTorch; gradients are +0 where nothing comes from.
TEST(IndexFunctionsTest, NegativeZerosStay) {
  for (const std::string mesh : {"", "a=2"}) {
    OnMesh(mesh, [&](const Context& context) {
      const bool splits = !mesh.empty();
      for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
        const auto expect = [&](const DTensor& y, const std::vector<double>& expected, const char* what) {
          EXPECT_TRUE(SameBits(y.FullTensor(), FromDoubles(dtype, y.shape(), expected)))
              << what << " of " << dtype << " on '" << mesh << "'";
        };
        const Tensor full = FromDoubles(dtype, {4}, {-0.0, -0.0, -0.0, 5});
        const DTensor x = Lay(context, full, splits ? "[a]" : "[-]").RequiresGrad();
        const DTensor src = Lay(context, FromDoubles(dtype, {3}, {-0.0, 0.0, -5}), "[-]");
        const DTensor index = Lay(context, Tensor::FromValues<int64_t>({3}, {1, 2, 3}), "[-]");
        const std::vector<double> sums = {-0.0, -0.0, 0.0, 0.0};
        expect(IndexAdd(x, 0, index, src), sums, "IndexAdd");
        expect(ScatterAdd(x, 0, index, src), sums, "ScatterAdd");
        expect(ScatterReduce(x, 0, index, src), sums, "sum");
        expect(ScatterReduce(x, 0, index, src, {.reduction = ScatterReduction::kMean}), sums, "mean");
        const DTensor copied = IndexCopy(x, 0, index, src);
        expect(copied, {-0.0, -0.0, 0.0, -5}, "IndexCopy");
        Backward(Sum(copied));
        expect(x.grad(), {1, 0, 0, 0}, "gradient of IndexCopy");
        const DTensor y = Lay(context, full, splits ? "[a]" : "[-]").RequiresGrad();
        Backward(Sum(IndexSelect(y, 0, index)));
        expect(y.grad(), {0, 1, 1, 1}, "gradient of IndexSelect");
        // Shorter than x in the other dim.
        const DTensor one = Lay(context, Tensor::FromValues<int64_t>({1, 1}, {0}), "[-, -]");
        const DTensor term = Lay(context, FromDoubles(dtype, {1, 1}, {-0.0}), "[-, -]");
        const std::vector<double> zeros(4, -0.0);
        for (const char* layout : {"[a, -]", "[-, a]"}) {
          const DTensor block = Lay(context, FromDoubles(dtype, {2, 2}, zeros), splits ? layout : "[-, -]");
          expect(ScatterAdd(block, 0, one, term), zeros, "ScatterAdd of a part");
        }
      }
    });
  }
}

// A src that is the infinity of the other end is the extremum alone where x does not count: all of the gradient is its.
TEST(IndexFunctionsTest, AnInfiniteExtremumWithoutSelfKeepsItsGradient) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::kF64, DType::kF16}) {
    for (const char* layout : {"[-]", "[a]"}) {
      OnMesh("a=2", [&](const Context& context) {
        for (ScatterReduction reduction : {ScatterReduction::kAmax, ScatterReduction::kAmin}) {
          // Both to the first place, one to the second; x stays at the third.
          const double least = reduction == ScatterReduction::kAmax ? -kInf : kInf;
          const DTensor x = Lay(context, FromDoubles(dtype, {3}, {7, 7, least}), layout).RequiresGrad();
          const DTensor src =
              Lay(context, FromDoubles(dtype, {3}, {least, least, least}), layout).RequiresGrad();
          const DTensor index = Lay(context, Tensor::FromValues<int64_t>({3}, {0, 0, 1}), "[-]");
          const DTensor y = ScatterReduce(x, 0, index, src, {.reduction = reduction, .include_self = false});
          EXPECT_EQ(y.FullTensor().ToVector<double>(), std::vector<double>(3, least));
          Backward(y, Lay(context, FromDoubles(dtype, {3}, {1, 2, 4}), layout));
          EXPECT_EQ(src.grad().FullTensor().ToVector<double>(), (std::vector<double>{0.5, 0.5, 2}));
          EXPECT_EQ(x.grad().FullTensor().ToVector<double>(), (std::vector<double>{0, 0, 4}));
        }
      });
    }
  }
}

// What a function moves, and how many bytes of it, all ranks together.
struct Moved {
  std::string text;
  int64_t num_bytes = 0;
  DTensor result;
};
Moved MovedBy(const Context& context, const std::function<DTensor()>& function) {
  context->world().ledger().Clear();
  Moved moved;
  moved.result = function();
  moved.text = LedgerText(*context);
  moved.num_bytes = CollectCommReport(*context).TotalBytes();
  return moved;
}

// f64[12, 3] over 3 ranks, 4 rows of 24 bytes each.
TEST(IndexFunctionsTest, OnlyWhatChangesHandsTravels) {
  OnMesh("a=3", [](const Context& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {12, 3}), "[a, -]").RequiresGrad();
    const auto expect = [&](const std::function<DTensor()>& function, const char* text, int64_t rows,
                            const char* layout) {
      const Moved moved = MovedBy(context, function);
      EXPECT_EQ(moved.text, text);
      EXPECT_EQ(moved.num_bytes, rows * 24);
      EXPECT_EQ(LayoutText(moved.result), layout);
    };
    const char* const exchange = "all_to_all a activation";
    // Rows 1 to 11, in pieces of 4 + 4 + 3: one row goes from each rank to the one before.
    expect([&] { return Slice(x, 0, 1, 11); }, exchange, 2, "[a, -]");
    expect([&] { return Roll(x, 1, 0); }, exchange, 3, "[a, -]");
    // 15 rows in pieces of 5: a new one and rows 0 to 3, rows 4 to 8, rows 9 to 11 and two new ones.
    expect([&] { return Pad(x, {{1, 2}, {0, 0}}); }, exchange, 1, "[a, -]");
    // 24 rows in pieces of 8: rank 0 takes rank 1's rows, rank 1 those of rank 2 and of 0, rank 2 the rest.
    expect([&] { return Concat({x, x}, 0); }, exchange, 4 + 8 + 4, "[a, -]");
    // Parts of fewer rows than ranks stay with their owners.
    expect([&] { return Slice(x, 0, 5, 2); }, "", 0, "[-, -] P{a}");
    // Each rank gives what it has of all 12 rows: the sum leaves 4 with each.
    expect([&] { return Flip(x, {0}); }, "reduce_scatter a activation", 2 * 12, "[a, -]");
    const DTensor index = Lay(context, Tensor::FromValues<int64_t>({2}, {7, 0}), "[-]");
    expect([&] { return IndexSelect(x, 0, index); }, "", 0, "[-, -] P{a}");
    const DTensor block = Lay(context, Tensor::FromValues<int64_t>({2, 3}, {7, 0, 1, 2, 3, 11}), "[-, -]");
    expect([&] { return Gather(x, 0, block); }, "", 0, "[-, -] P{a}");
    // Each rank adds to the rows that it holds.
    const DTensor src = Lay(context, WholeNumbers(DType::kF64, {2, 3}), "[-, -]");
    expect([&] { return ScatterAdd(x, 0, block, src); }, "", 0, "[a, -]");
    expect([&] { return IndexAdd(x, 0, index, src); }, "", 0, "[a, -]");
    expect([&] { return IndexCopy(x, 0, index, src); }, "", 0, "[a, -]");
    expect([&] { return Tril(x); }, "", 0, "[a, -]");
    // Rows 0, 2, 4 and so on: each rank gives what it has of all 6, and the sum leaves 2 with each.
    expect([&] { return Slice(x, 0, {.step = 2}); }, "reduce_scatter a activation", 2 * 6, "[a, -]");
    expect([&] { return SliceScatter(x, src, 0, {.start = 3, .stop = 5}); }, "", 0, "[a, -]");
    const DTensor whole = Lay(context, WholeNumbers(DType::kF64, {12, 3}), "[-, -]");
    const DTensor columns = Lay(context, WholeNumbers(DType::kF64, {2, 3}), "[-, a]");
    expect([&] { return SliceScatter(whole, columns, 0, {.start = 3, .stop = 5}); }, "", 0, "[-, a]");
    expect([&] { return ScatterReduce(x, 0, block, src, {.reduction = ScatterReduction::kAmax}); }, "", 0,
           "[a, -]");
    // A dim that is not split is a view.
    expect([&] { return Slice(x, 1, 0, 2); }, "", 0, "[a, -]");
  });
}

TEST(IndexFunctionsTest, GradientsTravelTheSameWay) {
  OnMesh("a=3", [](const Context& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {12, 3}), "[a, -]").RequiresGrad();
    const auto moved_by_backward = [&](const DTensor& y) {
      const DTensor seed = Lay(context, WholeNumbers(DType::kF64, y.shape()), y.layout());
      return MovedBy(context,
                     [&] {
                       Backward(y, seed);
                       return x;
                     })
          .text;
    };
    EXPECT_EQ(moved_by_backward(Slice(x, 0, 1, 11)), "all_to_all a activation");
    EXPECT_EQ(moved_by_backward(Roll(x, 1, 0)), "all_to_all a activation");
    EXPECT_EQ(moved_by_backward(Pad(x, {{1, 2}, {0, 0}})), "all_to_all a activation");
    EXPECT_EQ(moved_by_backward(Reshape(x, {36})), "");
    EXPECT_EQ(moved_by_backward(Tril(x)), "");
  });
}

TEST(IndexFunctionsTest, APartialSumIsRearrangedAsItIs) {
  OnMesh("a=2,b=2", [](const Context& context) {
    const Tensor full = WholeNumbers(DType::kF64, {6, 2});
    const DTensor x = Lay(context, full, "[a, -] P{b}");
    const Moved rolled = MovedBy(context, [&] { return Roll(x, 1, 0); });
    EXPECT_EQ(rolled.text, "all_to_all a activation");
    EXPECT_EQ(LayoutText(rolled.result), "[a, -] P{b}");
    // Ones cannot be added to every term.
    EXPECT_EQ(LayoutText(Pad(x, {{1, 1}, {0, 0}}, 1)), "[a, -]");
  });
}

TEST(IndexFunctionsTest, ReshapeKeepsTheSplitsThatItCan) {
  OnMesh("a=2,b=2", [](const Context& context) {
    const auto expect = [&](const Shape& from, const char* layout, const Shape& to, const char* moved,
                            const char* result) {
      const Tensor full = WholeNumbers(DType::kF64, from);
      const DTensor x = Lay(context, full, layout);
      const Moved seen = MovedBy(context, [&] { return Reshape(x, to); });
      EXPECT_EQ(seen.text, moved) << from << " " << layout << " to " << to;
      EXPECT_EQ(LayoutText(seen.result), result) << from << " " << layout << " to " << to;
      EXPECT_EQ(seen.result.FullTensor().ToVector<double>(), full.ToVector<double>());
    };
    expect({4, 6}, "[a, -]", {24}, "", "[a]");
    expect({4, 6}, "[a.b, -]", {24}, "", "[a.b]");
    expect({24}, "[a.b]", {2, 2, 6}, "", "[a, b, -]");
    expect({4, 6}, "[a, -] P{b}", {24}, "", "[a] P{b}");
    // The axis that splits columns moves to the rows, and stays one.
    expect({4, 6}, "[-, a]", {24}, "all_to_all a activation", "[a]");
    expect({4, 6}, "[b, a]", {24}, "all_to_all a activation", "[b.a]");
    // No dim has pieces that are halves of 15.
    expect({5, 3}, "[a, -]", {15}, "all_gather a activation", "[-]");
  });
}

TEST(IndexFunctionsTest, ViewMovesNothingOrSaysWhy) {
  OnMesh("a=2,b=2", [](const Context& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {5, 4, 6}), "[a, -, b]");
    EXPECT_EQ(LayoutText(View(x, {5, 2, 2, -1})), "[a, -, -, b]");
    EXPECT_EQ(
        ErrorOf([&] {
          View(x, {20, 6});
        }),
        "View: f64[5, 4, 6] [a, -, b] on mesh (a=2, b=2) cannot be seen as [20, 6] where it lies: its pieces "
        "are no boxes there, but they are of [5, 4, 6]. The nearest layout for it is [-, -, b.a]; Reshape "
        "redistributes to that by itself");
    const DTensor most = Lay(context, WholeNumbers(DType::kF64, {4, 6}), "[a, -] P{b:max}");
    EXPECT_THAT(ErrorOf([&] { View(most, {24}); }), HasSubstr("only sums and averages stay Partial"));
    EXPECT_THAT(ErrorOf([&] {
                  View(x, {7, -1});
                }),
                HasSubstr("View: 120 elements leave no extent for the -1 of [7, -1]"));
    EXPECT_THAT(ErrorOf([&] { View(x, {-1, -1}); }), HasSubstr("at most one of them -1"));
    EXPECT_THAT(ErrorOf([&] {
                  View(x, {5, 5});
                }),
                HasSubstr("View: f64[5, 4, 6] [a, -, b] has 120 elements"));
  });
}

TEST(IndexFunctionsTest, Errors) {
  OnMesh("a=2", [](const Context& context) {
    const DTensor x = Lay(context, WholeNumbers(DType::kF64, {5, 4}), "[a, -]");
    const auto index = [&](const Shape& shape, std::vector<int64_t> values) {
      return Lay(context, Tensor::FromValues<int64_t>(shape, values), Layout(shape.ndim(), 1));
    };
    EXPECT_THAT(ErrorOf([&] { Slice(x, 0, 3, 3); }), HasSubstr("slice: 3 elements from 3 do not lie within"));
    EXPECT_THAT(ErrorOf([&] { Slice(x, 0, {.step = -1}); }),
                HasSubstr("Slice: expected a positive step, got -1; Flip reverses a dim"));
    EXPECT_THAT(ErrorOf([&] { Slice(x, {{}, {}, {}}); }), HasSubstr("Slice: got 3 ranges for f64[5, 4]"));
    EXPECT_THAT(ErrorOf([&] { Select(x, 1, -5); }),
                HasSubstr("Select: index -5 is outside dim 1 of f64[5, 4]"));
    EXPECT_THAT(ErrorOf([&] { SliceScatter(x, x, 0, {.stop = 2}); }),
                HasSubstr("slice_scatter: src must be f64[2, 4], got f64[5, 4]"));
    EXPECT_THAT(ErrorOf([&] {
                  ScatterReduce(Cast(x, DType::kF32), 0, index({1, 4}, {0, 0, 0, 0}), x);
                }),
                HasSubstr("ScatterReduce: expected two operands of one floating dtype"));
    EXPECT_THAT(ErrorOf([&] { Interpolate(x, {.size = {2}}); }), HasSubstr("one to three spatial dims"));
    const DTensor image = Unsqueeze(x, 0);
    EXPECT_THAT(ErrorOf([&] { Interpolate(image, {}); }),
                HasSubstr("expected a size or a scale, got neither"));
    EXPECT_THAT(ErrorOf([&] { Interpolate(image, {.size = {2, 3}}); }), HasSubstr("expected 1 numbers"));
    EXPECT_THAT(ErrorOf([&] { Interpolate(image, {.scale = {1e300}}); }),
                HasSubstr("a factor of 1e+300 makes dim 2 of"));
    EXPECT_THAT(ErrorOf([&] { Interpolate(image, {.scale = {-2.0}}); }),
                HasSubstr("expected positive factors, got -2"));
    EXPECT_THAT(ErrorOf([&] { Split(x, {2, 2}, 0); }), HasSubstr("split: expected sizes that add up to 5"));
    EXPECT_THAT(ErrorOf([&] { Split(x, 0, 0); }),
                HasSubstr("Split: expected parts of a positive size, got 0"));
    EXPECT_THAT(ErrorOf([&] { Pad(x, {{1, 1}}); }), HasSubstr("pad: expected 2 widths before and after"));
    EXPECT_THAT(ErrorOf([&] { Flatten(x, 1, 0); }), HasSubstr("Flatten: dim 1"));
    EXPECT_THAT(ErrorOf([&] { Unflatten(x, 1, {3, 2}); }), HasSubstr("does not fall into [3, 2]"));
    EXPECT_THAT(ErrorOf([&] { Expand(x, {4}); }), HasSubstr("has more dims than [4]"));
    EXPECT_THAT(ErrorOf([&] {
                  IndexSelect(x, 0, index({2}, {0, 5}));
                }),
                HasSubstr("index_select: index 5 at [1] is outside [0, 5)"));
    EXPECT_THAT(ErrorOf([&] {
                  Gather(x, 1, index({6, 1}, {0, 0, 0, 0, 0, 0}));
                }),
                HasSubstr("Gather: the index is longer in dim 0"));
    EXPECT_THAT(ErrorOf([&] {
                  IndexCopy(x, 0, index({2}, {3, 3}), Slice(x, 0, 0, 2));
                }),
                HasSubstr("index_zero: index 3 stands at both [0] and [1]"));
    EXPECT_THAT(ErrorOf([&] { IndexAdd(x, 0, index({1}, {3}), Slice(x, 1, 0, 1)); }),
                HasSubstr("IndexAdd: src must have the extents of x but for dim 0"));
    EXPECT_THAT(ErrorOf([&] { IndexCopy(x, 0, index({1}, {3}), Slice(x, 1, 0, 1)); }),
                HasSubstr("IndexCopy: src must have the extents of x but for dim 0"));
    EXPECT_THAT(ErrorOf([&] {
                  IndexCopy(x, 0, index({2}, {3, 1}), Slice(x, 0, 0, 3));
                }),
                HasSubstr("IndexCopy: expected an index for each of the 3 along dim 0"));
  });
}

}  // namespace
}  // namespace weft
