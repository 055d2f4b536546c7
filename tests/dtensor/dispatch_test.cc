#include "dtensor/dispatch.h"

#include <random>

#include "dtensor/autograd/backward.h"
#include "dtensor/context/propagation_cache.h"
#include "dtensor/functions.h"
#include "dtensor/inspect/explain.h"
#include "dtensor/redistribution/implicit.h"
#include "gmock/gmock.h"
#include "ops/elementwise/elementwise.h"
#include "ops/optimizer/optimizer_update.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

// A function of tensors that must not depend on where they lie.
struct Function {
  const char* name;
  std::vector<Tensor> operands;
  std::function<DTensor(const std::vector<DTensor>&)> call;
};

Tensor Tokens(const Shape& shape, int64_t vocabulary) {
  std::vector<int64_t> values(shape.num_elements());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i * 5 + 2) % vocabulary;
  return Tensor::FromValues<int64_t>(shape, values);
}

std::vector<Function> Functions() {
  using Operands = std::vector<DTensor>;
  return {
      {"add", {RandomF64({3, 5}, 1), RandomF64({3, 5}, 2)}, [](const Operands& x) { return x[0] + x[1]; }},
      {"add bias",
       {RandomF64({2, 3, 5}, 1), RandomF64({5}, 2)},
       [](const Operands& x) { return x[0] + x[1]; }},
      {"sub column",
       {RandomF64({3, 5}, 1), RandomF64({3, 1}, 2)},
       [](const Operands& x) { return x[0] - x[1]; }},
      {"mul outer",
       {RandomF64({3, 1}, 1), RandomF64({1, 4}, 2)},
       [](const Operands& x) { return x[0] * x[1]; }},
      {"div", {RandomF64({3, 5}, 1), RandomF64({}, 2, 1, 2)}, [](const Operands& x) { return x[0] / x[1]; }},
      {"gelu", {RandomF64({3, 5}, 1)}, [](const Operands& x) { return Gelu(x[0]); }},
      {"exp of a scaled", {RandomF64({3, 5}, 1)}, [](const Operands& x) { return Exp(2.5 * x[0]); }},
      {"matmul",
       {RandomF64({3, 5}, 1), RandomF64({5, 4}, 2)},
       [](const Operands& x) { return MatMul(x[0], x[1]); }},
      {"matmul of three dims",
       {RandomF64({2, 3, 5}, 1), RandomF64({5, 4}, 2)},
       [](const Operands& x) { return MatMul(x[0], x[1]); }},
      {"batched matmul",
       {RandomF64({2, 3, 5}, 1), RandomF64({2, 5, 4}, 2)},
       [](const Operands& x) { return MatMul(x[0], x[1]); }},
      {"qkv",
       {RandomF64({2, 3, 4}, 1), RandomF64({4, 3, 2, 2}, 2)},
       [](const Operands& x) { return Contract(x[0], "bsd", x[1], "dthe", "bsthe"); }},
      {"sum of a dim", {RandomF64({5, 3}, 1)}, [](const Operands& x) { return Sum(x[0], {0}); }},
      {"sum", {RandomF64({5, 3}, 1)}, [](const Operands& x) { return Sum(x[0]); }},
      {"mean", {RandomF64({5, 3}, 1)}, [](const Operands& x) { return Mean(x[0]); }},
      {"mean, kept", {RandomF64({5, 3}, 1)}, [](const Operands& x) { return Mean(x[0], {-1}, true); }},
      {"softmax", {RandomF64({3, 5}, 1)}, [](const Operands& x) { return Softmax(x[0]); }},
      {"layer norm",
       {RandomF64({3, 5}, 1), RandomF64({5}, 2), RandomF64({5}, 3)},
       [](const Operands& x) { return LayerNormalize(x[0], x[1], x[2]); }},
      {"rms norm",
       {RandomF64({3, 5}, 1), RandomF64({5}, 2)},
       [](const Operands& x) { return RmsNormalize(x[0], x[1]); }},
      {"embedding",
       {Tokens({2, 3}, 7), RandomF64({7, 5}, 2)},
       [](const Operands& x) { return EmbeddingLookup(x[0], x[1]); }},
      {"cross-entropy",
       {RandomF64({2, 3, 5}, 1, -3, 3), Tokens({2, 3}, 5)},
       [](const Operands& x) { return CrossEntropy(x[0], x[1]).Mean(); }},
      {"attention",
       {RandomF64({2, 3, 4, 2}, 1), RandomF64({2, 3, 4, 2}, 2), RandomF64({2, 3, 4, 2}, 3)},
       [](const Operands& x) { return CausalAttention(x[0], x[1], x[2]); }},
      {"grouped attention",
       {RandomF64({2, 3, 4, 2}, 1), RandomF64({2, 3, 2, 2}, 2), RandomF64({2, 3, 2, 2}, 3)},
       [](const Operands& x) { return CausalAttention(x[0], x[1], x[2]); }},
      {"rotary", {RandomF64({2, 5, 2, 4}, 1)}, [](const Operands& x) { return Rotary(x[0]); }},
      {"permute",
       {RandomF64({2, 3, 5}, 1)},
       [](const Operands& x) {
         return Permute(x[0], {2, 0, 1});
       }},
      {"transpose", {RandomF64({3, 5}, 1)}, [](const Operands& x) { return Transpose(x[0], 0, -1); }},
      {"reshape",
       {RandomF64({4, 6}, 1)},
       [](const Operands& x) {
         return Reshape(x[0], {4, 2, 3});
       }},
      {"slice", {RandomF64({5, 3}, 1)}, [](const Operands& x) { return Slice(x[0], 0, 1, 3); }},
      {"concat",
       {RandomF64({2, 3}, 1), RandomF64({3, 3}, 2)},
       [](const Operands& x) { return Concat(x, 0); }},
      {"stack", {RandomF64({5}, 1), RandomF64({5}, 2)}, [](const Operands& x) { return Stack(x, 1); }},
      {"unbind", {RandomF64({3, 5}, 1)}, [](const Operands& x) { return Unbind(x[0], 0)[1]; }},
      {"cast and back",
       {RandomF64({3, 5}, 1)},
       [](const Operands& x) { return Cast(Cast(x[0], DType::kF32), DType::kF64); }},
      {"of no rows",
       {RandomF64({0, 5}, 1), RandomF64({5, 4}, 2)},
       [](const Operands& x) { return MatMul(x[0], x[1]); }},
      {"of one element",
       {RandomF64({1, 1}, 1), RandomF64({1, 1}, 2)},
       [](const Operands& x) { return x[0] * x[1]; }},
  };
}

// The whole result on one device.
Tensor OnOneDevice(const Function& function) {
  Tensor result;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    std::vector<DTensor> operands;
    for (const Tensor& operand : function.operands)
      operands.push_back(Lay(context, operand, Layout(operand.ndim(), 0)));
    result = function.call(operands).FullTensor();
  });
  return result;
}

class EveryFunctionTest : public testing::TestWithParam<const char*> {};

TEST_P(EveryFunctionTest, EqualsOneDeviceUnderAnyLayouts) {
  const std::vector<Function> functions = Functions();
  std::vector<Tensor> expected;
  for (const Function& function : functions) expected.push_back(OnOneDevice(function));
  OnMesh(GetParam(), [&](const IntrusivePtr<MeshContext>& context) {
    std::mt19937_64 random(11);  // the same on every rank
    for (size_t i = 0; i < functions.size(); ++i) {
      for (int draw = 0; draw < 15; ++draw) {
        std::vector<DTensor> operands;
        std::string what = functions[i].name;
        for (const Tensor& operand : functions[i].operands) {
          const bool partial = IsFloating(operand.dtype());
          const Layout layout = RandomLayout(context->mesh(), operand.ndim(), random, partial);
          operands.push_back(Lay(context, operand, layout));
          absl::StrAppend(&what, " ", operands.back().ToString());
        }
        const DTensor result = functions[i].call(operands);
        ASSERT_EQ(result.ToLocal().shape(), result.LocalBox().shape) << what << " gave " << result.ToString();
        // Casting to f32 and back costs its rounding, on terms too.
        const double tolerance = functions[i].name == std::string("cast and back") ? 1e-5 : 1e-12;
        ASSERT_TRUE(AllClose(result.FullTensor(), expected[i], tolerance))
            << what << " gave " << result.ToString();
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, EveryFunctionTest, testing::Values("a=2", "a=4", "a=2,b=2", "a=2,b=2,c=2"));

// Where outputs lie, and what moved for them.
TEST(DispatchTest, OutputLayouts) {
  OnMesh("dp=2,tp=2", [](const IntrusivePtr<MeshContext>& context) {
    const auto lay = [&](const Shape& shape, absl::string_view layout) {
      return Lay(context, RandomF64(shape, 5), layout);
    };
    const auto moved = [&] {
      const std::string text = LedgerText(*context);
      context->world().ledger().Clear();
      return text;
    };
    const DTensor x = lay({4, 6}, "[dp, -]");
    const DTensor up = MatMul(x, lay({6, 8}, "[-, tp]"));
    EXPECT_EQ(LayoutText(up), "[dp, tp]");
    EXPECT_EQ(LayoutText(Gelu(up + lay({8}, "[tp]"))), "[dp, tp]");
    const DTensor down = MatMul(up, lay({8, 6}, "[tp, -]"));
    EXPECT_EQ(LayoutText(down), "[dp, -] P{tp}");
    EXPECT_EQ(LayoutText(Sum(x)), "[] P{dp}");
    EXPECT_EQ(LayoutText(Mean(x, {0})), "[-] P{dp}");
    EXPECT_EQ(LayoutText(Mean(x, {1})), "[dp]");
    EXPECT_EQ(LayoutText(EmbeddingLookup(Lay(context, Tokens({2, 3}, 8), "[dp, -]"), lay({8, 6}, "[tp, -]"))),
              "[dp, -, -] P{tp}");
    const DTensor q = lay({2, 3, 4, 2}, "[dp, -, tp, -]");
    EXPECT_EQ(LayoutText(CausalAttention(q, q, q)), "[dp, -, tp, -]");
    EXPECT_EQ(LayoutText(Transpose(up, 0, 1)), "[tp, dp]");
    EXPECT_EQ(LayoutText(Slice(x, 1, 0, 3)), "[dp, -]");
    EXPECT_EQ(LayoutText(x + Full(context, DType::kF64, {6}, 1)), "[dp, -]");
    EXPECT_EQ(moved(), "");
    // Row-parallel: the bias joins the Partial sum, and waits with it.
    EXPECT_EQ(LayoutText(down + lay({6}, "[-]")), "[dp, -] P{tp}");
    EXPECT_EQ(moved(), "");
    // What is not linear needs the whole value.
    EXPECT_EQ(LayoutText(Gelu(down)), "[dp, -]");
    EXPECT_EQ(moved(), "all_reduce tp activation");
  });
}

TEST(DispatchTest, SplitLastDimsAreDecomposed) {
  OnMesh("dp=2,tp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor logits = Lay(context, RandomF64({4, 3, 6}, 5), "[dp, -, tp]");
    EXPECT_EQ(LayoutText(Softmax(logits)), "[dp, -, tp]");
    // The maximum and the sum of exponentials, one number per row; the logits stay where they are.
    EXPECT_EQ(LedgerText(*context), "all_reduce tp activation, all_reduce tp activation");
    int64_t bytes = 0;
    for (const LedgerEntry& entry : context->world().ledger().entries()) bytes += entry.num_bytes;
    const bool leads = context->coordinate()[1] == 0;
    EXPECT_EQ(bytes, leads ? 2 * 2 * (2 * 3 * 8) : 0);  // 2 all-reduces of 2(n-1)S
    context->world().ledger().Clear();
    const LossSum loss = CrossEntropy(logits, Lay(context, Tokens({4, 3}, 6), "[dp, -]"));
    EXPECT_EQ(LayoutText(loss.sum), "[] P{dp}");
    EXPECT_EQ(LayoutText(loss.count), "[] P{dp}");
    EXPECT_FALSE(loss.count.requires_grad());
    EXPECT_EQ(loss.count.Item(), 12);
    context->world().ledger().Clear();
    EXPECT_EQ(LayoutText(loss.Mean()), "[] P{dp}");
    EXPECT_EQ(LedgerText(*context), "all_reduce dp loss");
  });
}

TEST(DispatchTest, IgnoredTargetsDoNotCount) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor targets = Tensor::FromValues<int64_t>({4}, {-100, 1, -100, -100});
    const LossSum loss =
        CrossEntropy(Lay(context, RandomF64({4, 3}, 1), "[dp, -]"), Lay(context, targets, "[dp]"));
    EXPECT_EQ(loss.count.Item(), 1);
  });
}

TEST(DispatchTest, ImplicitRedistributionGivesTheSameValue) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor x = RandomF64({4, 6}, 1);
    const DTensor rows = Lay(context, x, "[a, -]");
    const DTensor sum = rows + Lay(context, x, "[-, a]");
    EXPECT_EQ(LedgerText(*context), "all_to_all a activation");
    EXPECT_TRUE(SameBits(sum.FullTensor(), (2.0 * rows).FullTensor()));
  });
}

// All-reduced once, for both: 96 bytes each way. Guards and Explain count the same.
TEST(DispatchTest, AnOperandThatStandsTwiceMovesOnce) {
  const Tensor full = RandomF64({3, 4}, 1, 1, 2);
  OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, full, "[-, -] P{a}");
    const ImplicitRedistributionGuard guard(context->state(), ImplicitRedistribution::kAllow);
    DTensor y;
    const std::vector<Explanation> calls = ExplainCalls(context->state(), [&] { y = Pow(x, x); });
    EXPECT_EQ(LedgerText(*context), "all_reduce a activation");
    EXPECT_EQ(LayoutText(y), "[-, -]");
    EXPECT_EQ(guard.num_bytes(), 192);
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].num_bytes(), 192) << calls[0];
    const DTensor whole = Lay(context, full, "[-, -]");
    EXPECT_TRUE(AllClose(y.ToLocal(), Pow(whole, whole).ToLocal(), 1e-12));
  });
}

TEST(DispatchTest, CacheHitsAndMisses) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const auto call = [&](const Shape& shape, absl::string_view layout, DType dtype = DType::kF32) {
      const DTensor x = Lay(context, WholeNumbers(dtype, shape), layout);
      const CacheStats before = context->cache().stats();
      Sum(x, {0});
      const CacheStats after = context->cache().stats();
      return after.hits - before.hits == 1 && after.misses == before.misses;
    };
    EXPECT_FALSE(call({4, 6}, "[a, -]"));
    EXPECT_TRUE(call({4, 6}, "[a, -]"));
    EXPECT_FALSE(call({4, 6}, "[-, a]"));               // another layout
    EXPECT_FALSE(call({4, 8}, "[a, -]"));               // shape
    EXPECT_FALSE(call({4, 6}, "[a, -]", DType::kF64));  // dtype
    EXPECT_TRUE(call({4, 6}, "[a, -]"));
    const DTensor x = Lay(context, WholeNumbers(DType::kF32, {4, 6}), "[a, -]");
    const CacheStats before = context->cache().stats();
    Sum(x, {1});  // a static attribute
    EXPECT_EQ(context->cache().stats().misses, before.misses + 1);
    Scale(x, 2);
    Scale(x, 3);  // a run-time scalar
    EXPECT_EQ(context->cache().stats().misses, before.misses + 2);
    EXPECT_EQ(context->cache().stats().hits, before.hits + 1);
  });
}

TEST(DispatchTest, MeshOfNoAxesIsOneDevice) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kF32, {2, 3}, 2);
    EXPECT_EQ(x.ToString(), "f32[2, 3] [-, -]");
    EXPECT_EQ(MatMul(x, Transpose(x, 0, 1)).ToLocal().ToVector<float>(),
              (std::vector<float>{12, 12, 12, 12}));
    EXPECT_EQ(Mean(x).Item(), 2);
    EXPECT_TRUE(context->world().ledger().entries().empty());
  });
}

TEST(DispatchTest, Misuse) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kF32, {2, 3}, 1);
    EXPECT_EQ(ErrorOf([&] { Call(kAdd, {x}); }), "add: expected 2 operands (a b), got 1");
    EXPECT_EQ(ErrorOf([&] { Call(kAdd, {x, x, x}); }), "add: expected 2 operands (a b), got 3");
    EXPECT_EQ(ErrorOf([&] { Call(kAdd, {}); }), "add: expected 2 operands (a b), got 0");
    EXPECT_EQ(ErrorOf([&] { Add(x, DTensor()); }), "add: operand 1 is undefined (default-constructed)");
    EXPECT_EQ(ErrorOf([&] { Concat({}, 0); }), "Concat: expected at least one tensor");
    const IntrusivePtr<MeshContext> other = Bind(context, DeviceMesh::Parse("b=2"));
    EXPECT_EQ(
        ErrorOf([&] {
          Add(x, Full(other, DType::kF32, {2, 3}, 1));
        }),
        "add: operands lie on different meshes: a=2 and b=2 in add(f32[2, 3] [-, -], f32[2, 3] [-, -]); "
        "redistribute one first");
    // Two bindings of equal meshes are the same ground.
    EXPECT_EQ(Sum(x + Full(Bind(context, DeviceMesh::Parse("a=2")), DType::kF32, {2, 3}, 1)).Item(), 12);
    EXPECT_THAT(ErrorOf([&] { MatMul(x, x); }), HasSubstr("contract: dim 'k' is 3 in x f32[2, 3]"));
    EXPECT_THAT(ErrorOf([&] { MatMul(x, Full(context, DType::kF32, {3}, 1)); }), HasSubstr("f32[3] [-]"));
    EXPECT_THAT(
        ErrorOf([&] { Full(context, DType::kF32, {2}, 1, Layout::Parse("[-] P{a}", context->mesh())); }),
        HasSubstr("fill: cannot create a Partial tensor ([-] P{a})"));
    EXPECT_THAT(ErrorOf([&] { Sum(x, {2}); }), HasSubstr("Sum"));
  });
}

// Nothing is written before an error.
TEST(DispatchTest, AnOpWithoutBackwardDoesNotRunWhereAGradientIsWanted) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor p = Full(context, DType::kF32, {2}, 1).RequiresGrad();
    const DTensor one = Full(context, DType::kF32, {}, 1);
    EXPECT_EQ(ErrorOf([&] {
                Call(kSgdUpdate, {p, p.Detach(), one}, {}, {.lr = 0.5});
              }),
              "sgd_update(f32[2] [-], f32[2] [-], f32[] []) has no backward; call it under NoGradGuard, or "
              "on Detach()ed operands");
    EXPECT_EQ(p.ToLocal().ToVector<float>(), (std::vector<float>{1, 1}));
  });
}

TEST(DispatchTest, AnUpdatedOperandMayNotMove) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor p = Lay(context, WholeNumbers(DType::kF32, {4}), "[-] P{a}");
    const DTensor g = Full(context, DType::kF32, {4}, 1);
    EXPECT_THAT(ErrorOf([&] {
                  Call(kSgdUpdate, {p, g, Full(context, DType::kF32, {}, 1)});
                }),
                HasSubstr("an operand of 'p' is updated in place and would have to move"));
  });
}

// The tape reads what forward saw or says who changed it: through the tensor itself, and through views of its
// memory.
TEST(DispatchTest, InPlaceWritesToSavedValuesAreRefused) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4, 4}, 1), "[-, a]").RequiresGrad();
    const auto error_after = [&](const std::function<DTensor(const DTensor& w)>& forward) {
      const DTensor w = Lay(context, RandomF64({4, 4}, 2), "[-, -]").RequiresGrad();
      const DTensor loss = Sum(forward(w));
      {
        const NoGradGuard no_grad(context->state());
        Call(kSgdUpdate, {w, w, Full(context, DType::kF32, {}, 1)}, {}, {.lr = 0.5});
      }
      return ErrorOf([&] { Backward(loss); });
    };
    const std::string refused = "but sgd_update has changed it in place since";
    const auto refuses = [&](const std::string& op) {
      return testing::AllOf(HasSubstr("Backward: " + op + " needs the"), HasSubstr(refused));
    };
    EXPECT_THAT(error_after([&](const DTensor& w) { return Square(w); }),
                "Backward: square needs the f64[4, 4] [-, -] that it saw in forward, " + refused);
    EXPECT_THAT(error_after([&](const DTensor& w) { return MatMul(w, w); }), refuses("contract"));
    EXPECT_THAT(error_after([&](const DTensor& w) { return MatMul(x, w); }),
                refuses("contract"));  // a slice of it
    EXPECT_THAT(error_after([&](const DTensor& w) { return Square(Transpose(w, 0, 1)); }), refuses("square"));
    EXPECT_THAT(error_after([&](const DTensor& w) { return Square(Slice(w, 0, 1, 2)); }), refuses("square"));
    EXPECT_THAT(error_after([&](const DTensor& w) { return w * w.Detach(); }), refuses("mul"));
    EXPECT_THAT(error_after([&](const DTensor& w) {
                  return Square(w.Redistribute(Layout::Parse("[a, -]", context->mesh())));
                }),
                refuses("square"));
    // Add saves nothing, and what was computed from w is not w.
    EXPECT_EQ(error_after([&](const DTensor& w) { return w + w; }), "nothing was thrown");
    EXPECT_EQ(error_after([&](const DTensor& w) { return Square(w + x); }), "nothing was thrown");
  });
}

}  // namespace
}  // namespace weft
