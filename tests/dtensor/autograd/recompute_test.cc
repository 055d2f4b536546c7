// Recompute: the same gradients by fewer saved bytes, whichever way a pass goes.

#include "dtensor/autograd/recompute.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/custom_function.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/dispatch.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "ops/optimizer/optimizer_update.h"
#include "tests/dtensor/autograd/functions_to_differentiate.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

Operands Leaves(const IntrusivePtr<MeshContext>& context, const Function& function) {
  Operands leaves;
  for (const Tensor& operand : function.operands) {
    Layout layout(operand.ndim(), context->mesh().num_axes());
    if (operand.ndim() > 0 && context->mesh().num_axes() > 0)
      layout = layout.WithShard(0, operand.ndim() - 1);
    leaves.push_back(Lay(context, operand, layout).RequiresGrad());
  }
  return leaves;
}

DTensor Recomputed(const Function& function, const Operands& inputs, const KeptOps& keep = KeptOps()) {
  return Recompute(
      [&function](const DTensors& x) -> DTensors {
        return {function.call({x.begin(), x.end()})};
      },
      DTensors(inputs.begin(), inputs.end()), keep)[0];
}

std::vector<Tensor> GradientsOf(const Operands& leaves) {
  std::vector<Tensor> gradients;
  for (const DTensor& leaf : leaves) gradients.push_back(leaf.grad().FullTensor());
  return gradients;
}

// Counts calls by the name of the op.
class CallCounter : public CallObserver {
 public:
  void OnCall(const ErasedCall& call, const ResolvedCall& /*plan*/) override { ++count[call.op.name()]; }
  std::map<std::string, int> count;
};

std::map<std::string, int> CallsOf(const IntrusivePtr<MeshContext>& context,
                                   const std::function<void()>& body) {
  CallCounter counter;
  const CallObserverGuard guard(context->state(), &counter);
  body();
  return counter.count;
}

// Two layers and a residual, with dropout: x, w1, w2.
Function Layers() {
  return {
      "layers", {RandomF64({4, 6}, 1), RandomF64({6, 6}, 2), RandomF64({6, 6}, 3)}, [](const Operands& x) {
        const DTensor h = Dropout(Tanh(MatMul(x[0], x[1])), 0.5);
        return x[0] + Dropout(MatMul(h, x[2]), 0.5);
      }};
}

TEST(RecomputeTest, GradientsHaveTheSameBits) {
  std::vector<Function> functions = Functions();
  functions.push_back(Layers());
  for (const Function& function : functions) {
    for (const std::string mesh : {"", "a=2"}) {
      OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
        context->state().ResetCallNumbers();
        const Operands expected = Leaves(context, function);
        const DTensor y = function.call(expected);
        Backward(Sum(y));
        context->state().ResetCallNumbers();
        const Operands leaves = Leaves(context, function);
        const DTensor again = Recomputed(function, leaves);
        EXPECT_TRUE(SameBits(again.FullTensor(), y.FullTensor())) << function.name;
        EXPECT_EQ(again.layout(), y.layout());
        Backward(Sum(again));
        const std::vector<Tensor> gradients = GradientsOf(leaves);
        for (size_t i = 0; i < leaves.size(); ++i) {
          EXPECT_TRUE(SameBits(gradients[i], expected[i].grad().FullTensor())) << function.name << " " << i;
        }
      });
    }
  }
}

// The mutant of the above: a function run again with other random bits has other gradients.
TEST(RecomputeTest, MasksThatAreNotReplayedShow) {
  const Function function = Layers();
  OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
    const auto gradient = [&](bool replays) {
      context->state().ResetCallNumbers();
      const Operands leaves = Leaves(context, function);
      const DTensor y = Recompute(
          [&](const DTensors& x) -> DTensors {
            if (!replays && context->state().in_backward()) context->state().NextCallNumber();
            return {function.call({x.begin(), x.end()})};
          },
          DTensors(leaves.begin(), leaves.end()))[0];
      Backward(Sum(y));
      return leaves[1].grad().FullTensor();
    };
    EXPECT_TRUE(SameBits(gradient(true), gradient(true)));
    EXPECT_FALSE(SameBits(gradient(true), gradient(false)));
  });
}

// What follows draws as if the function had not been run again.
TEST(RecomputeTest, DrawsGoOnWhereForwardLeftThem) {
  const Function function = Layers();
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    const Operands leaves = Leaves(context, function);
    const DTensor y = Recomputed(function, leaves);
    const RandomSnapshot before = context->state().random_snapshot();
    Backward(Sum(y));
    EXPECT_EQ(context->state().random_snapshot(), before);
  });
}

TEST(RecomputeTest, KeptResultsAreNotComputedAgain) {
  const Function function = Layers();
  OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
    const auto run = [&](const KeptOps& keep, std::vector<Tensor>* gradients) {
      context->state().ResetCallNumbers();
      const Operands leaves = Leaves(context, function);
      const DTensor y = Recomputed(function, leaves, keep);
      const auto calls = CallsOf(context, [&] { Backward(Sum(y)); });
      *gradients = GradientsOf(leaves);
      return calls;
    };
    std::vector<Tensor> all, some;
    auto again = run(KeptOps(), &all);
    auto kept = run(KeptOps({"contract"}), &some);
    EXPECT_EQ(again["contract"], 2 + 4);  // forward's, then two gradients of each
    EXPECT_EQ(kept["contract"], 4);
    EXPECT_EQ(again["tanh"], 1);
    EXPECT_EQ(kept["tanh"], 1);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(SameBits(all[i], some[i])) << i;
  });
}

TEST(RecomputeTest, HistoryHoldsTheInputsAlone) {
  const Function function = Layers();
  constexpr int64_t kMatrix = 4 * 6 * 8;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    Allocator& allocator = *context->allocator();
    const Operands leaves = Leaves(context, function);
    const int64_t before = allocator.stats().live_bytes;
    const DTensor y = Recomputed(function, leaves);
    const auto granules = [](int64_t bytes) {
      return (bytes + kAllocationGranule - 1) / kAllocationGranule * kAllocationGranule;
    };
    EXPECT_EQ(allocator.stats().live_bytes - before, granules(kMatrix));  // the result
    const DTensor kept = Recomputed(function, leaves, KeptOps({"contract"}));
    EXPECT_EQ(allocator.stats().live_bytes - before, granules(kMatrix) * 4);  // another, and two products
    Backward(Sum(y));
    Backward(Sum(kept));
    EXPECT_EQ(allocator.by_kind()[MemoryKind::kSaved].live, 0);
  });
}

// Chosen inputs, a pass in two halves, a retained history, and one within another.
TEST(RecomputeTest, PassesOfAllKinds) {
  const Function function = Layers();
  OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    const auto fresh = [&](Operands* leaves) {
      state.ResetCallNumbers();
      *leaves = Leaves(context, function);
      const DTensor before = Square((*leaves)[0]);
      const DTensor y = Recomputed(function, {before, (*leaves)[1], (*leaves)[2]});
      return Sum(Square(y));
    };
    Operands whole;
    Backward(fresh(&whole));
    const std::vector<Tensor> expected = GradientsOf(whole);

    Operands leaves;
    DTensor loss = fresh(&leaves);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const DTensor one = Grad({loss}, {leaves[i]}, {.retain_graph = true})[0];
      EXPECT_TRUE(AllClose(one.FullTensor(), expected[i], 1e-14)) << i;
    }
    Backward(loss, DTensor(), {.retain_graph = true});
    Backward(loss);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const Tensor twice = Scale(Lay(context, expected[i], leaves[i].layout()), 2).FullTensor();
      EXPECT_TRUE(SameBits(leaves[i].grad().FullTensor(), twice)) << i;
    }
    EXPECT_THAT(ErrorOf([&] { Backward(loss); }), testing::HasSubstr("was used up"));

    for (const std::vector<int>& now : {std::vector<int>{0}, {1}, {0, 2}}) {
      loss = fresh(&leaves);
      std::vector<DTensor> inputs;
      for (const int i : now) inputs.push_back(leaves[i]);
      DeferredGradients rest;
      int products = 0;
      std::vector<DTensor> first;
      products += CallsOf(context, [&] { first = Grad({loss}, inputs, {.deferred = &rest}); })["contract"];
      products += CallsOf(context, [&] { rest.Run(); })["contract"];
      EXPECT_EQ(products, 2 + 4);  // the function runs again once
      for (size_t i = 0; i < now.size(); ++i) {
        EXPECT_TRUE(AllClose(first[i].FullTensor(), expected[now[i]], 1e-14)) << now[i];
        EXPECT_FALSE(leaves[now[i]].grad().defined());
      }
      for (int i = 0; i < 3; ++i) {
        if (std::find(now.begin(), now.end(), i) != now.end()) continue;
        EXPECT_TRUE(AllClose(leaves[i].grad().FullTensor(), expected[i], 1e-14)) << i;
      }
    }

    state.ResetCallNumbers();
    leaves = Leaves(context, function);
    const DTensor nested = Recompute(
        [&](const DTensors& x) -> DTensors {
          return {Square(Recomputed(function, {Square(x[0]), x[1], x[2]}))};
        },
        {leaves[0], leaves[1], leaves[2]})[0];
    Backward(Sum(nested));
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(SameBits(leaves[i].grad().FullTensor(), expected[i])) << i;
    }
  });
}

// Leaves that the function reaches by itself, inputs that need no gradient, several outputs of which some are used, and
// one that is an input.
TEST(RecomputeTest, OperandsAndOutputsOfAllKinds) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor w = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor x = Lay(context, RandomF64({4}, 2), "[a]").RequiresGrad();
    const DTensor constant = Lay(context, RandomF64({4}, 3), "[-]");
    const DTensors y = Recompute(
        [&](const DTensors& in) -> DTensors {
          return {in[0] * w, Exp(in[1]), Exp(in[0]), in[0]};
        },
        {x, constant});
    ASSERT_EQ(y.size(), 4u);
    EXPECT_FALSE(y[1].requires_grad());
    Backward(Sum(y[0] + y[3] + y[1]));
    EXPECT_TRUE(AllClose(w.grad().FullTensor(), x.Detach().FullTensor(), 1e-15));
    EXPECT_TRUE(AllClose(x.grad().FullTensor(), (w.Detach() + 1.0).FullTensor(), 1e-15));
  });
}

// A function within another captures an input of that one, and what it has computed.
TEST(RecomputeTest, WhatIsCapturedFromAroundHasAGradient) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor a = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor b = Lay(context, RandomF64({4}, 2), "[a]").RequiresGrad();
    const DTensors y = Recompute(
        [](const DTensors& x) -> DTensors {
          return Recompute(
              [input = x[1], made = Exp(x[1])](const DTensors& in) -> DTensors {
                return {in[0] * input, in[0] * made};
              },
              {x[0]});
        },
        {a, b});
    Backward(Sum(y[0]) + Sum(y[1]));
    ASSERT_TRUE(b.grad().defined());
    const DTensor of_b = a.Detach(), e = Exp(b.Detach());
    EXPECT_TRUE(AllClose(a.grad().FullTensor(), (b.Detach() + e).FullTensor(), 1e-14));
    EXPECT_TRUE(AllClose(b.grad().FullTensor(), (of_b + of_b * e).FullTensor(), 1e-14));
  });
}

// h = exp(w), of which the loss, one function, and another beside w make something: its gradient is the sum of all that,
// and exp's backward sees it once.
TEST(RecomputeTest, ACapturedValueHasItsWholeGradient) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor w = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor x = Lay(context, RandomF64({4}, 2), "[a]").RequiresGrad();
    int runs = 0;
    const CustomFunction exponential = {
        .name = "exponential",
        .forward = [](const DTensors& in) -> DTensors { return {Exp(in[0])}; },
        .backward = [&runs](const CustomGradients& of) -> DTensors {
          ++runs;
          return {of.outputs[0] * of.gradients[0]};
        },
    };
    const DTensor h = CallCustom(exponential, {w})[0];
    const DTensor one = Recompute([h](const DTensors& in) -> DTensors { return {in[0] * h}; }, {x})[0];
    const DTensor two = Recompute([h, w](const DTensors& in) -> DTensors { return {in[0] * h * w}; }, {x})[0];
    const DTensor loss = Sum(one) + Sum(two) + Sum(h);
    const DTensor w_value = w.Detach(), x_value = x.Detach(), h_value = Exp(w_value);
    const DTensor of_h = x_value + x_value * w_value + 1.0;
    const DTensor of_x = h_value + h_value * w_value;
    const DTensor of_w = x_value * h_value + h_value * of_h;

    const DTensor whole = Grad({loss}, {h}, {.retain_graph = true})[0];
    EXPECT_TRUE(AllClose(whole.FullTensor(), of_h.FullTensor(), 1e-14));
    EXPECT_EQ(runs, 0);
    Backward(loss, DTensor(), {.retain_graph = true});
    EXPECT_EQ(runs, 1);
    EXPECT_TRUE(AllClose(x.grad().FullTensor(), of_x.FullTensor(), 1e-14));
    EXPECT_TRUE(AllClose(w.grad().FullTensor(), of_w.FullTensor(), 1e-14));

    DeferredGradients rest;
    const DTensor first = Grad({loss}, {x}, {.deferred = &rest})[0];
    EXPECT_TRUE(AllClose(first.FullTensor(), of_x.FullTensor(), 1e-14));
    EXPECT_EQ(runs, 1);
    rest.Run();
    EXPECT_EQ(runs, 2);
    EXPECT_TRUE(AllClose(w.grad().FullTensor(), Scale(of_w, 2).FullTensor(), 1e-14));
  });
}

// A function goes the way of forward, where it goes by NoSync as modules do that are recomputed for some microbatches, and
// forward alone stands under one, as in pipelines.
TEST(RecomputeTest, RunsAgainUnderForwardsNoSync) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    RankState& state = context->state();
    const auto twice = [](const DTensors& in) -> DTensors { return {Exp(Exp(in[0]))}; };
    const auto block = [&](const DTensors& in) {
      return state.syncs_gradients() ? twice(in) : Recompute(twice, in);
    };
    for (const bool is_held_in_forward : {true, false}) {
      const DTensor x = Lay(context, RandomF64({4}, 1), "[-]").RequiresGrad();
      std::optional<NoSync> no_sync;
      if (is_held_in_forward) no_sync.emplace(state);
      const DTensor y = Recompute(block, {x}, KeptOps({"exp"}))[0];
      no_sync.reset();
      if (!is_held_in_forward) no_sync.emplace(state);
      Backward(Sum(y));
      const DTensor e = Exp(x.Detach());
      EXPECT_TRUE(AllClose(x.grad().FullTensor(), (e * Exp(e)).FullTensor(), 1e-14));
    }
  });
}

TEST(RecomputeTest, MistakesAreNamed) {
  EXPECT_THAT(ErrorOf([] { KeptOps({"contrakt"}); }),
              testing::AllOf(testing::HasSubstr("'contrakt'"), testing::HasSubstr("'contract'")));
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    EXPECT_THAT(ErrorOf([] { Recompute([](const DTensors& x) { return x; }, {DTensor()}); }),
                testing::HasSubstr("at least one input"));
    const auto leaf = [&] { return Lay(context, RandomF64({4}, 1), "[-]").RequiresGrad(); };
    int run = 0;
    const auto changes = [&](const DTensors& x) -> DTensors { return {run++ == 0 ? Exp(x[0]) : Sum(x[0])}; };
    const DTensor other = Recompute(changes, {leaf()})[0];
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(other)); }), testing::HasSubstr("output 0 was f64[4]"));
    run = 0;
    const auto more = [&](const DTensors& x) -> DTensors {
      return {run++ == 0 ? Exp(x[0]) : Exp(Exp(x[0]))};
    };
    const DTensor longer = Recompute(more, {leaf()}, KeptOps({"exp"}))[0];
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(longer)); }), testing::HasSubstr("call 1 of the kept ops, of 1"));
    const DTensor x = leaf();
    const DTensor twice = Recompute([](const DTensors& in) -> DTensors { return {Exp(in[0])}; }, {x})[0];
    EXPECT_THAT(ErrorOf([&] { Grad({Sum(twice)}, {x}, {.create_graph = true}); }),
                testing::HasSubstr("gradients of gradients"));
  });
}

TEST(RecomputeTest, ALeafThatHasBeenWrittenToIsRefused) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor w = Lay(context, RandomF64({4}, 2), "[a]").RequiresGrad();
    const auto inner = [&w](const DTensors& in) -> DTensors { return {in[0] * w}; };
    const auto outer = [&](const DTensors& in) { return Recompute(inner, {Exp(in[0])}); };
    const auto error_after = [&](bool writes, const auto& function, const KeptOps& keep) {
      const DTensor loss = Sum(Recompute(function, {x}, keep)[0]);
      const NoGradGuard no_grad(context->state());
      if (writes) Call(kSgdUpdate, {w, w, Full(context, DType::kF32, {}, 1)}, {}, {.lr = 0.5});
      return ErrorOf([&] { Backward(loss); });
    };
    for (const bool writes : {true, false}) {
      const auto says = testing::HasSubstr(writes ? "sgd_update has changed it" : "nothing was thrown");
      EXPECT_THAT(error_after(writes, inner, KeptOps()), says);
      EXPECT_THAT(error_after(writes, inner, KeptOps({"mul"})), says);
      EXPECT_THAT(error_after(writes, outer, KeptOps()), says);
    }
  });
}

TEST(RecomputeTest, IsACallWhereGradientsAreOff) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4}, 1), "[-]").RequiresGrad();
    const NoGradGuard no_grad(context->state());
    EXPECT_FALSE(
        Recompute([](const DTensors& in) -> DTensors { return {Exp(in[0])}; }, {x})[0].requires_grad());
  });
}

}  // namespace
}  // namespace weft
