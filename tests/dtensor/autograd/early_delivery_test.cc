// Gradients of weights that go on their way before the gradient of a layer's input is made.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/functions.h"
#include "dtensor/tape/cast_node.h"
#include "dtensor/tape/gradient_sink.h"
#include "dtensor/tape/leaf_node.h"
#include "gmock/gmock.h"
#include "ops/elementwise/elementwise.h"
#include "ops/op/kernel.h"
#include "ops/sharding/sharding_rule.h"
#include "runtime/base/error.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/autograd/within_backward.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::ElementsAre;

// What happens in a backward pass, in order: "contract" for a call of an op, "delivered w" for what a sink gets, followed by
// " shared" if the pass keeps a handle of it.
class Events final : public CallObserver {
 public:
  void OnCall(const ErasedCall& call, const ResolvedCall& /*plan*/) override { Add(call.op.name()); }
  void Add(std::string event) { events_.push_back(std::move(event)); }
  const std::vector<std::string>& events() const { return events_; }

 private:
  std::vector<std::string> events_;
};

class NotingSink final : public GradientSink {
 public:
  NotingSink(LeafNode* leaf, std::string name, Events* events)
      : leaf_(leaf), name_(std::move(name)), events_(*events) {}
  void Deliver(int /*leaf*/, DTensor gradient) override {
    events_.Add("delivered " + name_ + (gradient.impl()->use_count() == 1 ? "" : " shared"));
    leaf_->AddGradient(std::move(gradient));
  }
  void Forget(int /*leaf*/) noexcept override { leaf_ = nullptr; }
  void EndPass() override {}
  void AbandonPass() noexcept override { events_.Add("abandoned " + name_); }

 private:
  LeafNode* leaf_;
  const std::string name_;
  Events& events_;
};

// y = x w, element by element. Its rule makes both gradients, whichever is wanted.
constinit const Op<> kScaled = {
    {.name = "scaled",
     .operands = "x w",
     .infer = [](absl::Span<const TensorType> types, const NoAttributes&) -> TensorTypes {
       return {types[0]};
     },
     .rule = [](absl::Span<const TensorType> types,
                const NoAttributes&) { return ElementwiseRule(2, 1, types[0].ndim()); },
     .saves = "x w",
     .backward =
         [](GradContext<NoAttributes, NoScalars>& context) {
           const Value w = context.saved("w");
           context.ReleaseGrad(1, context.Emit(kMul, {context.saved("x"), context.grad()}));
           context.SetGrad(0, context.Emit(kMul, {w, context.grad()}));
         }}};

void ScaledKernel(const KernelCall<NoAttributes, NoScalars>& call) {
  const double* const x = call.inputs[0].data<double>();
  const double* const w = call.inputs[1].data<double>();
  double* const y = call.outputs[0].data<double>();
  for (int64_t i = 0; i < call.outputs[0].num_elements(); ++i) y[i] = x[i] * w[i];
}
const RegisterKernel kRegister(kScaled, DeviceType::kCpu, ScaledKernel);

LeafNode& LeafOf(const DTensor& x) { return *dynamic_cast<LeafNode*>(x.impl()->node.get()); }

// A leaf whose gradients go to a sink.
DTensor Sunk(const DTensor& values, const std::string& name, Events* events) {
  DTensor leaf = values.RequiresGrad();
  LeafOf(leaf).set_sink(std::make_shared<NotingSink>(&LeafOf(leaf), name, events), 0);
  return leaf;
}

DTensor Values(const IntrusivePtr<MeshContext>& context, const Shape& shape, uint64_t seed) {
  return Lay(context, RandomF64(shape, seed), Layout(shape.ndim(), context->mesh().num_axes()));
}

std::vector<std::string> EventsOf(const DTensor& loss, Events* events) {
  const CallObserverGuard guard(loss.context()->state(), events);
  Backward(loss);
  return events->events();
}

TEST(EarlyDeliveryTest, OfEveryLayerWithAWeight) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Events of_contract, of_linear, of_gelu, of_conv;
    const auto x = [&] { return Values(context, {4, 3}, 1).RequiresGrad(); };
    const auto w = [&](Events* events) { return Sunk(Values(context, {3, 5}, 2), "w", events); };
    const auto b = [&](Events* events) { return Sunk(Values(context, {5}, 3), "b", events); };
    EXPECT_THAT(EventsOf(Sum(MatMul(x(), w(&of_contract))), &of_contract),
                ElementsAre("broadcast_to", "contract", "delivered w", "contract"));
    EXPECT_THAT(EventsOf(Sum(Contract(x(), "nk", w(&of_linear), "km", "nm", b(&of_linear))), &of_linear),
                ElementsAre("broadcast_to", "linear_weight_grad", "delivered b", "delivered w", "contract"));
    EXPECT_THAT(EventsOf(Sum(GeluContract(x(), "nk", w(&of_gelu), "km", "nm", b(&of_gelu))), &of_gelu),
                ElementsAre("broadcast_to", "linear_weight_grad", "delivered b", "delivered w",
                            "gelu_linear_input_grad"));
    const DTensor image = Values(context, {2, 3, 4, 4}, 4).RequiresGrad();
    const DTensor kernel = Sunk(Values(context, {5, 3, 3, 3}, 5), "w", &of_conv);
    EXPECT_THAT(EventsOf(Sum(Conv2d(image, kernel, b(&of_conv))), &of_conv),
                ElementsAre("broadcast_to", "sum", "delivered b", "conv_weight_grad", "delivered w",
                            "conv_data_grad"));
  });
}

// A weight that is used several times goes with the last of its terms.
TEST(EarlyDeliveryTest, NotBeforeTheLastUse) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {4, 3}, 1).RequiresGrad();
    Events twice;
    const DTensor used_twice = Sunk(Values(context, {3, 3}, 2), "w", &twice);
    EXPECT_THAT(
        EventsOf(Sum(MatMul(MatMul(x, used_twice), used_twice)), &twice),
        ElementsAre("broadcast_to", "contract", "contract", "contract", "add", "delivered w", "contract"));
    const DTensor w = used_twice.Detach().RequiresGrad();
    Backward(Sum(MatMul(MatMul(x.Detach(), w), w)));
    EXPECT_TRUE(SameBits(used_twice.grad().FullTensor(), w.grad().FullTensor()));
  });
}

TEST(EarlyDeliveryTest, AHookThatChangesTheWeightComesBehindItsLastReader) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {4, 3}, 1).RequiresGrad();
    Events events;
    const DTensor w = Sunk(Values(context, {3, 5}, 2), "w", &events);
    const DTensor loss = Sum(MatMul(x, w));
    const auto hooks = std::make_shared<HookList<void()>>();
    LeafOf(w).set_ready_hooks(hooks);
    const HookHandle handle = hooks->Add([&] {
      FillTensor(w.ToLocal(), 0);
      w.impl()->MarkWritten("hook");
    });
    EXPECT_THAT(EventsOf(loss, &events), ElementsAre("broadcast_to", "contract", "contract", "delivered w"));
    const DTensor other = Values(context, {4, 3}, 1).RequiresGrad();
    Backward(Sum(MatMul(other, Values(context, {3, 5}, 2))));
    EXPECT_TRUE(SameBits(x.grad().FullTensor(), other.grad().FullTensor()));
  });
}

// A weight that computes in another dtype: its gradient is cast, and goes.
TEST(EarlyDeliveryTest, ThroughACast) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Events events;
    const DTensor x = Cast(Values(context, {4, 3}, 1), DType::kF32).RequiresGrad();
    const DTensor w = Sunk(Values(context, {3, 5}, 2), "w", &events);
    const DTensor copy = Cast(w.Detach(), DType::kF32);  // as Parameter::Value makes it
    copy.impl()->node = MakeCastNode(context->state(), w.impl()->node, DType::kF64);
    EXPECT_THAT(EventsOf(Sum(MatMul(x, copy)), &events),
                ElementsAre("broadcast_to", "contract", "cast", "delivered w", "contract"));
    EXPECT_EQ(w.grad().dtype(), DType::kF64);
  });
}

// What targets get does not go early, nor what an inner pass has: the outer one may have more of it.
TEST(EarlyDeliveryTest, OnlyOfTheOutermostPass) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Values(context, {4, 3}, 1).RequiresGrad();
    Events events;
    const DTensor w = Sunk(Values(context, {3, 5}, 2), "w", &events);
    Grad({Sum(MatMul(x, w))}, {x, w});
    EXPECT_THAT(events.events(), ElementsAre());

    const DTensor inner = Sum(MatMul(x, w));
    const auto run = [&] {
      Backward(inner);
      events.Add("inner ends");
    };
    // Recorded last, the node runs first.
    const DTensor outer = Sum(MatMul(x, w));
    const std::vector<std::string> all = EventsOf(outer + Sum(WithinBackward(x, run)), &events);
    EXPECT_EQ(std::count(all.begin(), all.end(), "delivered w"), 1);
    EXPECT_LT(std::find(all.begin(), all.end(), "inner ends"),
              std::find(all.begin(), all.end(), "delivered w"));
    EXPECT_TRUE(SameBits(w.grad().FullTensor(), (2.0 * Grad({Sum(MatMul(x, w))}, {w})[0]).FullTensor()));
  });
}

// A rule may release a gradient that is not wanted, as it may set one.
TEST(EarlyDeliveryTest, OfAnOpOfOnesOwn) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Events events;
    const DTensor x = Values(context, {4, 3}, 1).RequiresGrad();
    const DTensor w = Sunk(Values(context, {4, 3}, 2), "w", &events);
    EXPECT_THAT(EventsOf(Sum(Call(kScaled, {x, w})), &events),
                ElementsAre("broadcast_to", "mul", "delivered w", "mul"));
    EXPECT_TRUE(SameBits(w.grad().FullTensor(), x.FullTensor()));
    const DTensor other = x.Detach().RequiresGrad();
    Backward(Sum(Call(kScaled, {other, w.Detach()})));  // of a weight that is frozen
    EXPECT_TRUE(SameBits(other.grad().FullTensor(), x.grad().FullTensor()));
  });
}

// The pass that fails behind an early gradient is abandoned.
TEST(EarlyDeliveryTest, AFailureBehindIt) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    class Fails final : public CallObserver {
     public:
      void OnCall(const ErasedCall& call, const ResolvedCall& /*plan*/) override {
        if (std::string(call.op.name()) == "gelu_linear_input_grad")
          throw Error(absl::StatusCode::kInternal, "the test says so");
      }
    } fails;
    Events events;
    const DTensor x = Values(context, {4, 3}, 1).RequiresGrad();
    const DTensor w = Sunk(Values(context, {3, 5}, 2), "w", &events);
    const DTensor loss = Sum(GeluContract(x, "nk", w, "km", "nm", Values(context, {5}, 3)));
    {
      const CallObserverGuard guard(context->state(), &fails);
      EXPECT_EQ(ErrorOf([&] { Backward(loss); }), "the test says so");
    }
    EXPECT_THAT(events.events(), ElementsAre("delivered w", "abandoned w"));
    EXPECT_FALSE(x.grad().defined());
  });
}

}  // namespace
}  // namespace weft
