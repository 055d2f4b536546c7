#include "dtensor/nn/parameter.h"

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/recompute.h"
#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

// A root with one parameter "w".
class OneParameter : public Module {
 public:
  explicit OneParameter(const ParameterSpec& spec) : w(this, "w", spec) {}
  explicit OneParameter(const Shape& shape)
      : OneParameter({.shape = shape, .initializer = Initializer::Normal(0, 1)}) {}

  void Lay(const IntrusivePtr<MeshContext>& context, absl::string_view at_rest, absl::string_view compute,
           DType dtype = DType::kF64, DType compute_dtype = DType::kF64) {
    Bind(context);
    const ParameterLayouts layouts = {Layout::Parse(at_rest, context->mesh()),
                                      Layout::Parse(compute, context->mesh())};
    w.Materialize(context, dtype, compute_dtype, layouts);
  }

  Parameter w;
};

// This rank's live bytes, and what it wrote into its ledger since the last call.
int64_t LiveBytes(const IntrusivePtr<MeshContext>& context) {
  return context->allocator()->stats().live_bytes;
}
std::string Moved(const IntrusivePtr<MeshContext>& context) {
  const std::string text = LedgerText(*context);
  context->world().ledger().Clear();
  return text;
}

class InitialValueTest : public testing::TestWithParam<Initializer> {};

TEST_P(InitialValueTest, SameBitsOnEveryLayout) {
  const ParameterSpec spec = {.shape = {5, 3}, .initializer = GetParam()};
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    Tensor expected;
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      OneParameter model(spec);
      context->state().set_seed(5);
      model.Lay(context, "[-, -]", "[-, -]", dtype, dtype);
      expected = model.w.at_rest().ToLocal();
    });
    OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
      context->state().set_seed(5);
      context->state().set_step(3);  // the first value belongs to no step
      for (const Layout& layout : AllLayouts(context->mesh(), 2, {})) {
        OneParameter model(spec);
        model.w.Materialize(context, dtype, dtype, {layout, layout});
        EXPECT_EQ(model.w.at_rest().layout(), layout);
        EXPECT_TRUE(SameBits(model.w.at_rest().FullTensor(), expected)) << layout;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Initializers, InitialValueTest,
                         testing::Values(Initializer::Constant(0.5), Initializer::Normal(1, 0.02),
                                         Initializer::Uniform(-2, 3)));

TEST(ParameterTest, InitialValuesDependOnSeedAndPath) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    class Pair : public Module {
     public:
      Parameter a{this, "a", {.shape = {8}, .initializer = Initializer::Normal(0, 1)}};
      Parameter b{this, "b", {.shape = {8}, .initializer = Initializer::Normal(0, 1)}};
    };
    Pair first, again, other;
    Materialize(first, context);
    Materialize(again, context);
    context->state().set_seed(1);
    Materialize(other, context);
    EXPECT_TRUE(SameBits(first.a.at_rest().ToLocal(), again.a.at_rest().ToLocal()));
    EXPECT_FALSE(SameBits(first.a.at_rest().ToLocal(), first.b.at_rest().ToLocal()));
    EXPECT_FALSE(SameBits(first.a.at_rest().ToLocal(), other.a.at_rest().ToLocal()));
  });
}

TEST(ParameterTest, ReplicatedParametersAreUsedAsTheyAre) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{4, 3});
    model.Lay(context, "[-, -]", "[-, -]");
    EXPECT_EQ(model.w.Value().impl(), model.w.at_rest().impl());
    EXPECT_TRUE(model.w.at_rest().requires_grad());
    EXPECT_EQ(Moved(context), "");
  });
}

// FSDP: gathered for forward and again for backward, the gradient reduce-scattered.
TEST(ParameterTest, ShardedAtRestReplicatedInCompute) {
  const Tensor x = RandomF64({4, 5}, 1);
  Tensor loss_expected, gradient_expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{5, 3});
    model.Lay(context, "[-, -]", "[-, -]");
    const DTensor loss = Sum(Square(MatMul(Lay(context, x, "[-, -]"), model.w.Value())));
    Backward(loss);
    loss_expected = loss.FullTensor();
    gradient_expected = model.w.grad().FullTensor();
  });
  OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{5, 3});  // uneven: 3 rows and 2
    model.Lay(context, "[dp, -]", "[-, -]");
    const DTensor input = Lay(context, x, "[dp, -]").RequiresGrad();
    const DTensor loss = Sum(Square(MatMul(input, model.w.Value())));
    EXPECT_EQ(Moved(context), "all_gather dp param");
    Backward(loss);
    EXPECT_EQ(Moved(context), "all_gather dp param, reduce_scatter dp grad");
    EXPECT_EQ(LayoutText(model.w.grad()), "[dp, -]");
    EXPECT_TRUE(AllClose(loss.FullTensor(), loss_expected, 1e-13));
    EXPECT_TRUE(AllClose(model.w.grad().FullTensor(), gradient_expected, 1e-13));
    // Where no gradient of the input is wanted, backward does not read the parameter.
    model.w.ClearGrad();
    const DTensor again = Sum(Square(MatMul(Lay(context, x, "[dp, -]"), model.w.Value())));
    Moved(context);
    Backward(again);
    EXPECT_EQ(Moved(context), "reduce_scatter dp grad");
    EXPECT_TRUE(AllClose(model.w.grad().FullTensor(), gradient_expected, 1e-13));
  });
}

TEST(ParameterTest, AParameterOfTwoUsesIsReducedOnce) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{4, 4});
    model.Lay(context, "[dp, -]", "[-, -]");
    const DTensor x = Lay(context, RandomF64({4, 4}, 1), "[dp, -]");
    const DTensor loss = Sum(MatMul(Gelu(MatMul(x, model.w.Value())), model.w.Value()));
    EXPECT_EQ(Moved(context), "all_gather dp param, all_gather dp param");
    Backward(loss);
    EXPECT_EQ(Moved(context), "all_gather dp param, reduce_scatter dp grad");
  });
}

// The tape keeps the at-rest value and not the copy, also where a call takes only a slice of the copy.
TEST(ParameterTest, UnshardedCopiesAreFreedAfterForward) {
  constexpr int64_t kFullBytes = 64 * 64 * 8;
  OnMesh("dp=2,tp=2", [](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{64, 64});
    model.Lay(context, "[dp, -]", "[-, -]");
    // Where tp splits the contraction, a rank gets the rows that it wants from where they rest: half of the
    // ranks have them.
    const bool has_its_rows = context->coordinate()[0] == context->coordinate()[1];
    for (const auto& [layout, again] : std::vector<std::pair<std::string, std::string>>{
             {"[dp, -]", "all_gather dp param"}, {"[dp, tp]", has_its_rows ? "" : "send_recv dp.tp param"}}) {
      const DTensor x = Lay(context, RandomF64({2, 64}, 1), layout).RequiresGrad();
      const int64_t before = LiveBytes(context);
      DTensor y;
      {
        const DTensor copy = model.w.Value();
        EXPECT_GE(LiveBytes(context), before + kFullBytes);
        y = MatMul(x, copy);
      }
      EXPECT_LE(LiveBytes(context), before + 1024) << layout;  // the 64 elements of y
      Moved(context);
      const DTensor loss = Sum(y);
      Backward(loss);
      EXPECT_THAT(Moved(context), HasSubstr(again)) << layout;
      model.w.ClearGrad();
    }
  });
}

// Backward makes the copy again, and takes the part of it that forward took. The gradient of x in x * part is the part.
TEST(ParameterTest, EachPartOfACopyIsMadeAgainAsThatPart) {
  using Function = std::function<std::vector<DTensor>(const DTensor&)>;
  const std::vector<int64_t> rows = {1, 3}, columns = {2, 1};
  const std::vector<Function> functions = {
      [&](const DTensor& w) { return Unbind(w, 0); },
      [&](const DTensor& w) { return Split(w, rows, 0); },
      // Parts of a part.
      [&](const DTensor& w) { return Split(Split(w, rows, 0)[1], columns, 1); },
  };
  const auto product = [](const DTensors& inputs) -> DTensors { return {inputs[0] * inputs[1]}; };
  for (const char* mesh : {"", "dp=2"}) {
    OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
      const bool split = context->mesh().num_axes() > 0;
      OneParameter model(Shape{4, 3});
      model.Lay(context, split ? "[dp, -]" : "[-, -]", "[-, -]", DType::kF32, DType::kF64);
      const DTensor plain = Lay(context, model.w.Value().FullTensor(), "[-, -]");
      for (const Function& function : functions) {
        const std::vector<DTensor> expected = function(plain);
        for (const bool recomputes : {false, true}) {
          DTensors inputs;
          DTensor loss = Full(context, DType::kF64, {}, 0);
          const std::vector<DTensor> parts = function(model.w.Value());
          for (const DTensor& part : parts) {
            inputs.push_back(Full(context, DType::kF64, part.shape(), 1).RequiresGrad());
            const DTensors operands = {inputs.back(), part};
            loss = loss + Sum((recomputes ? Recompute(product, operands) : product(operands))[0]);
          }
          Backward(loss);
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(SameBits(inputs[i].grad().FullTensor(), expected[i].FullTensor()))
                << mesh << " part " << i << (recomputes ? " recomputed" : "");
          }
        }
      }
    });
  }
}

TEST(ParameterTest, CopiesReachTheirAtRestGradient) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{4});
    model.Lay(context, "[dp]", "[-]");
    const DTensor copy = model.w.Value();
    EXPECT_EQ(LayoutText(copy), "[-]");
    Backward(Sum(3.0 * copy));
    EXPECT_EQ(copy.grad().impl(), model.w.grad().impl());
    EXPECT_EQ(model.w.grad().ToLocal().ToVector<double>(), (std::vector<double>{3, 3}));
    model.w.ClearGrad();
    EXPECT_FALSE(model.w.grad().defined());
  });
}

// Cast, then gathered in bf16; gradients cast back, then reduced in f32.
TEST(ParameterTest, ComputeInBf16) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{4, 6});
    model.Lay(context, "[dp, -]", "[-, -]", DType::kF32, DType::kBF16);
    EXPECT_EQ(model.w.at_rest().dtype(), DType::kF32);
    const DTensor x =
        Lay(context, FromDoubles(DType::kBF16, {2, 4}, std::vector<double>(8, 1)), "[dp, -]").RequiresGrad();
    const DTensor value = model.w.Value();
    EXPECT_EQ(value.ToString(), "bf16[4, 6] [-, -]");
    EXPECT_TRUE(SameBits(value.ToLocal(), Cast(model.w.at_rest(), DType::kBF16).FullTensor()));
    const DTensor loss = Sum(MatMul(x, value));
    context->world().ledger().Clear();
    Backward(loss);
    const std::vector<LedgerEntry> entries = context->world().ledger().entries();
    ASSERT_EQ(LedgerText(*context), "all_gather dp param, reduce_scatter dp grad");
    if (context->coordinate()[0] == 0) {
      EXPECT_EQ(entries[0].num_bytes, 4 * 6 * 2);
      EXPECT_EQ(entries[1].num_bytes, 4 * 6 * 4);
    }
    EXPECT_EQ(model.w.grad().ToString(), "f32[4, 6] [dp, -]");
    EXPECT_EQ(model.w.grad().FullTensor().ToVector<float>(), std::vector<float>(24, 2));
  });
}

// bf16 counts to 256 and no further.
TEST(ParameterTest, GradientsOfOneBf16CopyAreSummedInF32) {
  for (const char* mesh : {"", "dp=2"}) {
    OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
      const bool split = context->mesh().num_axes() > 0;
      OneParameter model(Shape{4, 6});
      model.Lay(context, split ? "[dp, -]" : "[-, -]", "[-, -]", DType::kF32, DType::kBF16);
      const DTensor x = Lay(context, FromDoubles(DType::kBF16, {2, 4}, std::vector<double>(8, 1)),
                            split ? "[dp, -]" : "[-, -]");
      const DTensor copy = model.w.Value();
      DTensor loss = Sum(MatMul(x, copy));
      for (int i = 1; i < 300; ++i) loss = loss + Sum(MatMul(x, copy));
      Moved(context);
      Backward(loss);
      EXPECT_EQ(Moved(context), split ? "reduce_scatter dp grad" : "");
      EXPECT_EQ(model.w.grad().dtype(), DType::kF32);
      EXPECT_EQ(model.w.grad().FullTensor().ToVector<float>(), std::vector<float>(24, 600)) << mesh;
    });
  }
}

TEST(ParameterTest, AStepBetweenForwardAndBackwardIsRefused) {
  for (const char* compute : {"[dp, -]", "[-, -]"}) {  // the parameter itself, and a copy of it
    OnMesh("dp=2", [&](const IntrusivePtr<MeshContext>& context) {
      OneParameter model(Shape{4, 4});
      model.Lay(context, "[dp, -]", compute);
      Sgd sgd({&model.w}, {});
      const auto forward = [&] { return Sum(Square(model.w.Value())); };
      Backward(forward());
      const DTensor stale = forward();
      sgd.Step(0.1);
      EXPECT_EQ(ErrorOf([&] { Backward(stale); }),
                "Backward: square needs the f64[4, 4] [dp, -] that it saw in forward, but sgd_update has "
                "changed it in "
                "place since");
      EXPECT_EQ(ErrorOf([&] { Backward(forward()); }), "nothing was thrown");
      const DTensor loaded = forward();
      model.w.Load(model.w.at_rest());
      EXPECT_THAT(ErrorOf([&] { Backward(loaded); }), HasSubstr("but load has changed it in place since"));
    });
  }
}

// A copy from before a step holds the weights from before it; backward would gather those from after it.
TEST(ParameterTest, ACopyFromBeforeAStepIsRefused) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{4, 4});
    model.Lay(context, "[dp, -]", "[-, -]");
    Sgd sgd({&model.w}, {});
    Backward(Sum(model.w.Value()));
    const DTensor copy = model.w.Value();
    sgd.Step(0.1);
    const std::string refused =
        " needs the f64[4, 4] [dp, -] that it saw in forward, but sgd_update has changed it in place since";
    EXPECT_EQ(ErrorOf([&] { Backward(Sum(Square(copy))); }), "Backward: square" + refused);
    // Moved by the user, and by the call that splits its contraction.
    const Layout columns = Layout::Parse("[-, dp]", context->mesh());
    EXPECT_EQ(ErrorOf([&] { Backward(Sum(Square(copy.Redistribute(columns)))); }),
              "Backward: square" + refused);
    const DTensor x = Lay(context, RandomF64({2, 4}, 1), columns).RequiresGrad();
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(MatMul(x, copy))); }), HasSubstr(refused));
    // Backward does not read it here.
    EXPECT_EQ(ErrorOf([&] { Backward(Sum(MatMul(x.Detach(), copy))); }), "nothing was thrown");
    EXPECT_EQ(ErrorOf([&] { Backward(Sum(MatMul(x, model.w.Value()))); }), "nothing was thrown");
  });
}

// Such a copy is the parameter itself: forward and backward see what a step made of it.
TEST(ParameterTest, ACopyInTheParametersMemoryFollowsIt) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{4, 4});
    model.Lay(context, "[-, -]", "[dp, -]");
    Sgd sgd({&model.w}, {});
    Backward(Sum(model.w.Value()));
    const DTensor copy = model.w.Value();
    ASSERT_EQ(copy.ToLocal().buffer(), model.w.at_rest().ToLocal().buffer());
    sgd.Step(0.1);
    const DTensor moved = copy.Redistribute(Layout::Parse("[-, dp]", context->mesh()));
    for (const DTensor& x : {copy, moved}) {
      model.w.ClearGrad();
      Backward(Sum(Square(x)));
      EXPECT_TRUE(
          AllClose(model.w.grad().FullTensor(), (2.0 * model.w.at_rest().Detach()).FullTensor(), 1e-15));
    }
    // What was moved out of that memory does not follow.
    sgd.Step(0.1);
    EXPECT_EQ(ErrorOf([&] { Backward(Sum(Square(copy))); }), "nothing was thrown");
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(Square(moved))); }),
                HasSubstr("sgd_update has changed it in place"));
  });
}

TEST(ParameterTest, LoadTakesAnyLayout) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor full = WholeNumbers(DType::kF64, {5, 3});
    for (const char* layout : {"[-, -]", "[a.b, -]", "[b, a]", "[-, a] P{b}"}) {
      OneParameter model(Shape{5, 3});
      model.Lay(context, "[b.a, -]", "[-, -]");
      model.w.Load(Lay(context, full, layout));
      EXPECT_TRUE(SameBits(model.w.at_rest().FullTensor(), full)) << layout;
      EXPECT_TRUE(SameBits(model.w.Value().ToLocal(), full)) << layout;
    }
  });
}

TEST(ParameterTest, Misuse) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    OneParameter model(Shape{4});
    const std::string unset =
        "parameter 'w' has no value yet: call Materialize or Parallelize on the model first";
    EXPECT_FALSE(model.w.materialized());
    EXPECT_EQ(ErrorOf([&] { model.w.Value(); }), unset);
    EXPECT_EQ(ErrorOf([&] { model.w.grad(); }), unset);
    EXPECT_EQ(ErrorOf([&] { AdamW({&model.w}, {}); }), unset);
    EXPECT_EQ(ErrorOf([&] { model.Lay(context, "[-]", "[-]", DType::kI32); }),
              "parameter 'w': expected floating dtypes, got i32, computing in f64");
    EXPECT_THAT(ErrorOf([&] { model.Lay(context, "[-] P{dp}", "[-]"); }),
                HasSubstr("cannot create a Partial tensor"));
    model.Lay(context, "[dp]", "[-]");
    EXPECT_EQ(ErrorOf([&] { model.Lay(context, "[dp]", "[-]"); }), "parameter 'w' already has a value");
    EXPECT_EQ(ErrorOf([&] { model.w.Load(Full(context, DType::kF32, {4}, 0)); }),
              "parameter 'w': expected f64[4], got f32[4]");
    EXPECT_EQ(ErrorOf([&] { model.w.SetGrad(Full(context, DType::kF64, {4}, 0)); }),
              "gradient of 'w': expected f64[4] [dp], got f64[4] [-]");
    const auto other = Bind(context, DeviceMesh::Parse("ep=2"));
    EXPECT_EQ(ErrorOf([&] { model.w.SetGrad(Full(other, DType::kF64, {4}, 0, model.w.layouts().at_rest)); }),
              "gradient of 'w': expected a tensor on mesh (dp=2), got f64[4] [ep] on mesh (ep=2)");
    EXPECT_EQ(ErrorOf([&] { Parameter(&model, "w", {.shape = {1}}); }),
              "module '' already has a parameter 'w'");
  });
}

}  // namespace
}  // namespace weft
