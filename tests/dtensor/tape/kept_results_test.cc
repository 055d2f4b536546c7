// Ops that are kept where they run as their decompositions: what they need whole is split. What is read besides calls.

#include "dtensor/tape/kept_results.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/local_function.h"
#include "dtensor/autograd/recompute.h"
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

// Counts decomposed calls by the name of the op.
class DecomposedCounter : public CallObserver {
 public:
  void OnCall(const ErasedCall& call, const ResolvedCall& plan) override {
    if (plan.strategy.decomposed) ++count[call.op.name()];
  }
  std::map<std::string, int> count;
};

struct KeptCall {
  const char* op;
  std::function<DTensor(const DTensor&)> call;  // of x [4, 6], split along dim 1
};

std::vector<KeptCall> DecomposedCalls() {
  return {
      {"softmax", [](const DTensor& x) { return Softmax(x); }},
      {"log_softmax", [](const DTensor& x) { return LogSoftmax(x); }},
      {"layer_norm",
       [](const DTensor& x) {
         const DTensor ones = Full(x.context(), DType::kF64, {6}, 1);
         return LayerNormalize(x, ones, ones);
       }},
      {"rms_norm", [](const DTensor& x) { return RmsNormalize(x, Full(x.context(), DType::kF64, {6}, 1)); }},
      {"channel_norm", [](const DTensor& x) { return BatchNormalize(Transpose(x, 0, 1)).y; }},
      {"cross_entropy", [](const DTensor& x) { return CrossEntropy(x, Targets(x, {4}, 6)).Mean(); }},
      {"log_sum_exp", [](const DTensor& x) { return LogSumExp(x, {1}); }},
      {"variance", [](const DTensor& x) { return Var(x, {1}); }},
      {"std", [](const DTensor& x) { return Std(x, {1}); }},
      {"vector_norm", [](const DTensor& x) { return Norm(x, 2, {1}); }},
      {"cumsum", [](const DTensor& x) { return CumSum(x, 1); }},
      {"cumprod", [](const DTensor& x) { return CumProd(x, 1); }},
  };
}

TEST(KeptResultsTest, DecomposedCallsAreNotRunAgain) {
  const Tensor values = RandomF64({4, 6}, 1, 0.5, 1.5);
  OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
    for (const KeptCall& each : DecomposedCalls()) {
      std::vector<Tensor> gradients;
      std::vector<int> calls;  // in backward
      for (const KeptOps& keep : {KeptOps(), KeptOps({each.op})}) {
        const DTensor x = Lay(context, values, "[-, a]").RequiresGrad();
        const auto function = [&each](const DTensors& in) -> DTensors { return {each.call(in[0])}; };
        DecomposedCounter counter;
        const CallObserverGuard guard(context->state(), &counter);
        const DTensor y = Recompute(function, {x}, keep)[0];
        ASSERT_EQ(counter.count[each.op], 1) << each.op;
        Backward(Sum(Square(y)));
        gradients.push_back(x.grad().FullTensor());
        calls.push_back(counter.count[each.op] - 1);
      }
      EXPECT_EQ(calls[0], calls[1] + 1) << each.op;  // a gradient may be a call of the op, too
      EXPECT_TRUE(SameBits(gradients[0], gradients[1])) << each.op;
    }
  });
}

// A leaf that is moved, or goes to a user's own code, before a call reads it.
TEST(KeptResultsTest, WhatIsMovedHasBeenRead) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Layout split = Layout::Parse("[a]", context->mesh());
    const LocalFunction same = {
        .name = "same",
        .operands = {{.layout = split, .gradient = split}},
        .outputs = {{.type = {DType::kF64, {4}}, .layout = split, .gradient = split}},
        .forward = [](absl::Span<const Tensor> pieces) { return std::vector<Tensor>{pieces[0]}; },
        .backward = [](const LocalGradients& of) { return std::vector<Tensor>{of.gradients[0]}; },
    };
    const DTensor x = Lay(context, RandomF64({4}, 1), split).RequiresGrad();
    const DTensor w = Lay(context, RandomF64({4}, 2), split).RequiresGrad();
    const std::vector<std::function<DTensor()>> moves = {
        [&] { return w.Redistribute(Layout(1, 1)); },
        [&] { return Roll(w, 1, 0); },
        [&] { return CallLocal(same, {w})[0]; },
    };
    for (size_t i = 0; i < moves.size(); ++i) {
      const auto product = [&](const DTensors& in) -> DTensors { return {in[0] * moves[i]()}; };
      const DTensor loss = Sum(Recompute(product, {x})[0]);
      const NoGradGuard no_grad(context->state());
      Call(kSgdUpdate, {w, w, Full(context, DType::kF32, {}, 1)}, {}, {.lr = 0.5});
      EXPECT_THAT(ErrorOf([&] { Backward(loss); }), testing::HasSubstr("sgd_update has changed it in place"))
          << i;
    }
  });
}

}  // namespace
}  // namespace weft
