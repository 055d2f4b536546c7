// Grad, several roots, retained histories, and passes in two halves.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/functions.h"
#include "dtensor/redistribution/pending_moves.h"
#include "dtensor/tape/cast_node.h"
#include "dtensor/tape/gradient_sink.h"
#include "dtensor/tape/leaf_node.h"
#include "gmock/gmock.h"
#include "runtime/base/error.h"
#include "runtime/comm/work.h"
#include "tests/dtensor/autograd/functions_to_differentiate.h"
#include "tests/dtensor/autograd/within_backward.h"
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

std::vector<Tensor> ByBackward(const IntrusivePtr<MeshContext>& context, const Function& function) {
  const Operands leaves = Leaves(context, function);
  Backward(function.call(leaves));
  std::vector<Tensor> gradients;
  for (const DTensor& leaf : leaves) gradients.push_back(leaf.grad().FullTensor());
  return gradients;
}

TEST(GradTest, IsWhatBackwardLeavesInLeaves) {
  for (const Function& function : Functions()) {
    OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
      const std::vector<Tensor> expected = ByBackward(context, function);
      const Operands leaves = Leaves(context, function);
      const DTensor loss = function.call(leaves);
      const std::vector<DTensor> all = Grad({loss}, leaves, {.retain_graph = true});
      for (size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_TRUE(SameBits(all[i].FullTensor(), expected[i])) << function.name << " " << i;
        EXPECT_EQ(all[i].layout(), leaves[i].layout());
        EXPECT_FALSE(leaves[i].grad().defined());
        // One alone, by what leads to it alone.
        const DTensor one = Grad({loss}, {leaves[i]}, {.retain_graph = true})[0];
        EXPECT_TRUE(AllClose(one.FullTensor(), expected[i], 1e-13)) << function.name << " " << i;
      }
    });
  }
}

TEST(GradTest, OfResultsAndOfOneThatIsNotUsed) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor unused = Lay(context, RandomF64({4}, 2), "[a]").RequiresGrad();
    const DTensor y = Square(x);
    const DTensor loss = Sum(y * y + 3.0 * y);
    const std::vector<DTensor> gradients = Grad({loss}, {y, x, unused, x}, {.allow_unused = true});
    EXPECT_TRUE(AllClose(gradients[0].FullTensor(), (2.0 * y.Detach() + 3.0).FullTensor(), 1e-14));
    EXPECT_TRUE(AllClose(gradients[1].FullTensor(),
                         ((2.0 * y.Detach() + 3.0) * 2.0 * x.Detach()).FullTensor(), 1e-14));
    EXPECT_FALSE(gradients[2].defined());
    EXPECT_TRUE(SameBits(gradients[3].FullTensor(), gradients[1].FullTensor()));
  });
}

// A parameter's copy in bf16, whose gradients are added up in f32 and reduced; they can be differentiated.
TEST(GradTest, OfACopyInAnotherDTypeIsInThatDType) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x =
        Lay(context, FromDoubles(DType::kF32, {4}, std::vector<double>(4, 3)), "[-]").RequiresGrad();
    const auto copy = [&] {  // as Parameter::Value makes it
      const DTensor made = Cast(x.Detach(), DType::kBF16);
      made.impl()->node = MakeCastNode(context->state(), x.impl()->node, DType::kF32);
      return made;
    };
    const DTensor w = copy();
    const DTensor loss = Sum(Square(w) + 2.0 * w);
    for (const bool create_graph : {true, false}) {
      const DTensor gradient = Grad({loss}, {w}, {.create_graph = create_graph})[0];
      EXPECT_EQ(gradient.type(), w.type());
      EXPECT_EQ(Cast(gradient.Detach(), DType::kF64).FullTensor().ToVector<double>(),
                std::vector<double>(4, 8));
      EXPECT_EQ(gradient.requires_grad(), create_graph);
      if (!create_graph) continue;
      const DTensor second = Grad({Sum(gradient)}, {w}, {.retain_graph = true})[0];
      EXPECT_EQ(second.type(), w.type());
      EXPECT_EQ(Cast(second.Detach(), DType::kF64).FullTensor().ToVector<double>(),
                std::vector<double>(4, 2));
    }
    Backward(Sum(Square(copy())));
    EXPECT_EQ(x.grad().dtype(), DType::kF32);
  });
}

TEST(GradTest, SeveralRootsAreOnePass) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor seed = RandomF64({4}, 9);
    const DTensor x = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor shared = Exp(x);
    const DTensor loss = Sum(shared * x);
    const DTensor rest = Square(shared);
    // `loss` is a root, and so is `shared`, on which both others depend.
    Backward({loss, rest, shared}, {DTensor(), Lay(context, seed, "[a]"), Lay(context, seed, "[-]")});
    const DTensor e = shared.Detach(), s = Lay(context, seed, "[a]");
    const DTensor expected = e * x.Detach() + e + 2.0 * s * e * e + s * e;
    EXPECT_TRUE(AllClose(x.grad().FullTensor(), expected.FullTensor(), 1e-13));
    const DTensor z = Lay(context, seed, "[a]").RequiresGrad();
    Backward({Sum(z), Sum(2.0 * z)});
    EXPECT_EQ(z.grad().FullTensor().ToVector<double>(), std::vector<double>(4, 3));
  });
}

TEST(GradTest, ARetainedHistoryGivesTheSameBits) {
  for (const Function& function : Functions()) {
    OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
      const std::vector<Tensor> expected = ByBackward(context, function);
      const Operands leaves = Leaves(context, function);
      const DTensor loss = function.call(leaves);
      Backward(loss, DTensor(), {.retain_graph = true});
      const std::vector<DTensor> second = Grad({loss}, leaves);
      for (size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_TRUE(SameBits(leaves[i].grad().FullTensor(), expected[i])) << function.name << " " << i;
        EXPECT_TRUE(SameBits(second[i].FullTensor(), expected[i])) << function.name << " " << i;
      }
      EXPECT_THAT(ErrorOf([&] { Backward(loss); }), testing::HasSubstr("{.retain_graph = true}"));
    });
  }
}

// Counts calls by the name of the op.
class CallCounter : public CallObserver {
 public:
  void OnCall(const ErasedCall& call, const ResolvedCall& /*plan*/) override { ++count_[call.op.name()]; }
  const std::map<std::string, int>& count() const { return count_; }

 private:
  std::map<std::string, int> count_;
};

// Two halves: input gradients first, those of weights later, in no other bits and by no more products.
TEST(GradTest, APassInTwoHalvesIsThePass) {
  const Function mlp = {"mlp",
                        {RandomF64({4, 6}, 1), RandomF64({6, 6}, 2), RandomF64({6}, 3)},
                        [](const Operands& x) {  // the weights serve twice, once transposed
                          const DTensor h = Tanh(MatMul(x[0], x[1]) + x[2]);
                          return Sum(Square(MatMul(h, Transpose(x[1], 0, 1)) + x[2]));
                        }};
  OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
    const auto counted = [&](const std::function<void()>& body) {
      CallCounter counter;
      const CallObserverGuard guard(context->state(), &counter);
      body();
      return counter.count();
    };
    const Operands at_once = Leaves(context, mlp);
    const DTensor whole_loss = mlp.call(at_once);
    const auto calls_at_once = counted([&] { Backward(whole_loss); });

    const Operands leaves = Leaves(context, mlp);
    const DTensor loss = mlp.call(leaves);
    DeferredGradients rest;
    DTensor input;
    auto calls = counted([&] { input = Grad({loss}, {leaves[0]}, {.deferred = &rest})[0]; });
    EXPECT_EQ(calls["contract"], 2);  // back through each product
    EXPECT_FALSE(rest.empty());
    for (const DTensor& leaf : leaves) EXPECT_FALSE(leaf.grad().defined());
    for (const auto& [op, count] : counted([&] { rest.Run(); })) calls[op] += count;
    EXPECT_TRUE(rest.empty());
    EXPECT_TRUE(SameBits(input.FullTensor(), at_once[0].grad().FullTensor()));
    EXPECT_FALSE(leaves[0].grad().defined());
    for (const size_t weight : {1, 2}) {
      EXPECT_TRUE(AllClose(leaves[weight].grad().FullTensor(), at_once[weight].grad().FullTensor(), 1e-14));
    }
    EXPECT_EQ(calls["contract"], calls_at_once.at("contract"));
    rest.Run();  // nothing more
    EXPECT_THAT(ErrorOf([&] { Backward(loss); }), testing::HasSubstr("was used up"));
  });
}

// A norm has all gradients of one pass over x and dy. In two halves the first drops those of weight and bias, and the second
// makes them in a pass of its own.
TEST(GradTest, NormsReadTheirInputInBothHalves) {
  struct Norm {
    const char* all;      // the op that makes every gradient
    const char* weights;  // the op that makes those of weight and bias alone
    std::function<DTensor(const Operands&)> call;
  };
  for (const Norm& norm : {Norm{"layer_norm_grad", "layer_norm_weight_grad",
                                [](const Operands& x) { return LayerNormalize(x[0], x[1], x[2]); }},
                           Norm{"rms_norm_grad", "rms_norm_weight_grad",
                                [](const Operands& x) { return RmsNormalize(x[0], x[1]) + x[2]; }},
                           Norm{"channel_norm_grad", "channel_norm_grad_sums",
                                [](const Operands& x) { return BatchNormalize(x[0], x[1], x[2]).y; }}}) {
    const Function function = {norm.all,
                               {RandomF64({5, 6}, 1), RandomF64({6}, 2), RandomF64({6}, 3)},
                               [&](const Operands& x) { return Sum(Square(norm.call(x))); }};
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      const auto counts = [&](const std::function<void()>& body) {
        CallCounter counter;
        const CallObserverGuard guard(context->state(), &counter);
        body();
        const auto of = [&](const char* op) {
          return counter.count().count(op) ? counter.count().at(op) : 0;
        };
        return std::vector<int>{of(norm.all), of(norm.weights)};
      };
      const Operands at_once = Leaves(context, function);
      const DTensor whole_loss = function.call(at_once);
      EXPECT_EQ(counts([&] { Backward(whole_loss); }), (std::vector<int>{1, 0})) << norm.all;

      const Operands leaves = Leaves(context, function);
      const DTensor loss = function.call(leaves);
      DeferredGradients rest;
      DTensor input;
      EXPECT_EQ(counts([&] { input = Grad({loss}, {leaves[0]}, {.deferred = &rest})[0]; }),
                (std::vector<int>{1, 0}))
          << norm.all;
      EXPECT_FALSE(leaves[1].grad().defined());
      EXPECT_EQ(counts([&] { rest.Run(); }), (std::vector<int>{0, 1})) << norm.all;
      EXPECT_TRUE(AllClose(input.FullTensor(), at_once[0].grad().FullTensor(), 1e-14)) << norm.all;
      for (const size_t weight : {1, 2}) {
        EXPECT_TRUE(AllClose(leaves[weight].grad().FullTensor(), at_once[weight].grad().FullTensor(), 1e-14))
            << norm.all;
      }
    });
  }
}

// A root that leads to no input is put off as a whole.
TEST(GradTest, WhatDoesNotLeadToTheInputsIsPutOff) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor w = Lay(context, RandomF64({4}, 2), "[a]").RequiresGrad();
    DeferredGradients rest;
    const DTensor gradient = Grad({Sum(Square(x)), Sum(Square(w))}, {x}, {.deferred = &rest})[0];
    EXPECT_TRUE(AllClose(gradient.FullTensor(), (2.0 * x.Detach()).FullTensor(), 1e-15));
    EXPECT_FALSE(w.grad().defined());
    rest.Run();
    EXPECT_TRUE(AllClose(w.grad().FullTensor(), (2.0 * w.Detach()).FullTensor(), 1e-15));
  });
}

// Notes what is delivered, and brings it to rest.
class NotingSink : public GradientSink {
 public:
  explicit NotingSink(LeafNode* leaf) : leaf_(leaf) {}
  void Deliver(int /*leaf*/, DTensor gradient) override {
    ++delivered;
    leaf_->AddGradient(std::move(gradient));
  }
  void Forget(int /*leaf*/) noexcept override { leaf_ = nullptr; }
  void EndPass() override { ++ended; }
  void AbandonPass() noexcept override { ++abandoned; }

  int delivered = 0, ended = 0, abandoned = 0;

 private:
  LeafNode* leaf_;
};

// What an inner pass has for a leaf goes with the outer one's own, to a sink once; also where the outer one has
// nothing of its own.
TEST(GradTest, InnerPassesDeliverToTheOutermost) {
  for (const bool used_outside : {true, false}) {
    OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
      const DTensor w = Lay(context, RandomF64({5}, 1), "[-]").RequiresGrad();
      const DTensor x = Lay(context, RandomF64({5}, 2), "[-]").RequiresGrad();
      LeafNode& leaf = *dynamic_cast<LeafNode*>(w.impl()->node.get());
      const auto sink = std::make_shared<NotingSink>(&leaf);
      leaf.set_sink(sink, 0);
      const DTensor inner = Sum(3.0 * w);
      const DTensor outer = used_outside ? Sum(2.0 * w) : Sum(Square(x));
      // Recorded last, the node runs first: the leaf's own use comes after.
      const auto run = [&] { Backward(inner, DTensor(), {.retain_graph = true}); };
      const DTensor y = Sum(WithinBackward(x, run));
      Backward(outer + y);
      EXPECT_EQ(sink->delivered, 1);
      EXPECT_EQ(sink->ended, 1);
      EXPECT_EQ(w.grad().FullTensor().ToVector<double>(), std::vector<double>(5, used_outside ? 5 : 3));
      sink->ended = 0;
      Grad({Sum(2.0 * w)}, {w});
      EXPECT_EQ(sink->delivered, 1);
      EXPECT_EQ(sink->ended, 0);
    });
  }
}

TEST(GradTest, EveryReaderIsToldOfATermThatFailed) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor w = Lay(context, RandomF64({2}, 1), "[-]").RequiresGrad();
    LeafNode& leaf = *dynamic_cast<LeafNode*>(w.impl()->node.get());
    const auto deliver = [&](bool fails) {
      const Work work = Work().Then([fails] {
        if (fails) ThrowInvalidArgument("the reduction failed");
      });
      auto pending = MakeIntrusive<PendingMoves>(context->state(), LaneWorks{.works = {work}});
      leaf.AddGradient(DTensor(MakeIntrusive<DTensorImpl>(
          context, w.layout(), w.type(), Tensor::FromValues<double>({2}, {1, 2}), std::move(pending))));
    };
    deliver(/*fails=*/false);
    deliver(/*fails=*/true);
    for (int reader = 0; reader < 2; ++reader) {
      EXPECT_THAT(ErrorOf([&] { w.grad(); }), testing::HasSubstr("the reduction failed"));
    }
    leaf.ClearGradient();
    for (int i = 0; i < 3; ++i) deliver(/*fails=*/false);
    EXPECT_EQ(w.grad().FullTensor().ToVector<double>(), (std::vector<double>{3, 6}));
  });
}

// A pass in two halves may be cut where a result of a call is: what lies behind it is the second half's.
TEST(GradTest, DeferredBehindAResult) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const auto leaf = [&](uint64_t seed) {
      return Lay(context, RandomF64({4, 4}, seed), "[a, -]").RequiresGrad();
    };
    const DTensor first = leaf(1), second = leaf(2), x = Lay(context, RandomF64({4, 4}, 3), "[a, -]");
    const auto loss = [&](DTensor* middle) {
      *middle = Mul(first, x);
      return Sum(Mul(Square(*middle), second));
    };
    DTensor middle;
    Backward(loss(&middle));
    const Tensor expected_first = first.grad().FullTensor(), expected_second = second.grad().FullTensor();
    const DTensor again_first = leaf(1), again_second = leaf(2);
    const DTensor again = Mul(again_first, x);
    DeferredGradients rest;
    const std::vector<DTensor> gradients =
        Grad({Sum(Mul(Square(again), again_second))}, {again}, {.deferred = &rest});
    EXPECT_FALSE(gradients[0].defined());
    EXPECT_FALSE(again_first.grad().defined());
    EXPECT_FALSE(again_second.grad().defined());
    rest.Run();
    EXPECT_EQ(again_first.grad().FullTensor().ToVector<double>(), expected_first.ToVector<double>());
    EXPECT_EQ(again_second.grad().FullTensor().ToVector<double>(), expected_second.ToVector<double>());
  });
}

TEST(GradTest, Misuse) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor other = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor y = Sum(Square(x));
    EXPECT_EQ(ErrorOf([&] { Grad({y}, {}); }),
              "Grad: expected inputs to differentiate with respect to, got none");
    EXPECT_EQ(ErrorOf([&] { Grad({}, {x}); }), "Grad: expected something to differentiate, got no tensors");
    EXPECT_EQ(
        ErrorOf([&] { Grad({y}, {x.Detach()}); }),
        "Grad: the input f64[4] [a] is on no history; make it a leaf with RequiresGrad() before it is used");
    EXPECT_EQ(ErrorOf([&] { Grad({y}, {other}, {.retain_graph = true}); }),
              "Grad: no output depends on input 0, f64[4] [a]; with {.allow_unused = true} its gradient is "
              "undefined");
    EXPECT_EQ(ErrorOf([&] {
                Backward({y, y}, {DTensor()});
              }),
              "Backward: expected 2 seeds, one for each of the tensors, or none; got 1");
    DeferredGradients rest;
    EXPECT_EQ(ErrorOf([&] { Grad({y}, {x}, {.retain_graph = true, .deferred = &rest}); }),
              "Grad: `deferred` keeps what it needs; with it, create_graph and retain_graph have no meaning");
    Grad({Sum(x * other)}, {x}, {.deferred = &rest});
    EXPECT_EQ(
        ErrorOf([&] { Grad({y}, {x}, {.deferred = &rest}); }),
        "Grad: expected a `deferred` that is empty, got one with gradients that another call has put off; "
        "Run() it first");
    rest.Run();
    EXPECT_TRUE(SameBits(other.grad().FullTensor(), x.Detach().FullTensor()));
    Grad({y}, {x}, {.deferred = &rest});
  });
}

}  // namespace
}  // namespace weft
