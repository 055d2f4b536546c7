// What segments cost, measured: forward and backward of each, on a clock that the segments move themselves; the cuts that
// follow; and that a measurement leaves nothing behind.

#include "parallel/pipeline/segment_costs.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/local_function.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

using testing::ElementsAre;

// What a layer takes of the clock.
struct Times {
  double forward = 0;
  double backward = 0;
};

// x -> x + b, after some time.
class Slow : public Module {
 public:
  Slow(Module* parent, std::string name, double* now, const Times& times)
      : Module(parent, std::move(name)),
        bias(this, "bias", {.shape = {kDim}, .initializer = Initializer::Constant(0)}),
        table(this, "table", {.shape = {kDim}, .initializer = Initializer::Constant(1)}),
        now_(now),
        times_(times) {}

  Parameter bias;
  ModuleBuffer table;

 protected:
  DTensor Forward(const DTensor& x) override {
    const Layout layout = x.layout();
    const auto pass = [this](const Tensor& piece, double seconds) {
      *now_ += seconds;
      return std::vector<Tensor>{piece};
    };
    const LocalFunction function = {
        .name = "slow",
        .operands = {{.layout = layout, .gradient = layout}},
        .outputs = {{.type = x.type(), .layout = layout, .gradient = layout}},
        .forward = [=, this](absl::Span<const Tensor> of) { return pass(of[0], times_.forward); },
        .backward = [=, this](const LocalGradients& of) { return pass(of.gradients[0], times_.backward); },
    };
    const DTensor sum = Add(x, bias.Value());
    return CallLocal(function, std::vector<DTensor>{sum})[0];
  }

 private:
  double* const now_;
  const Times times_;
};

class SlowModel : public SegmentedModule {
 public:
  explicit SlowModel(const std::vector<Times>& times) {
    for (size_t i = 0; i < times.size(); ++i) {
      layers.push_back(std::make_unique<Slow>(this, absl::StrCat("layers.", i), &now, times[i]));
    }
  }
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    now += 0.25;
    return MseLoss(outputs[0], targets);
  }

  double now = 0;
  double first_cost = 1;  // as the model says it
  std::vector<std::unique_ptr<Slow>> layers;

 protected:
  // The model says that all cost otherwise, so that each has a time of its own.
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> chain;
    for (const auto& each : layers) {
      chain.push_back({.modules = {each.get()},
                       .cost = first_cost + 0.01 * static_cast<double>(chain.size()),
                       .run = [&each](const DTensors& x) -> DTensors { return {(*each)(x[0])}; }});
    }
    return chain;
  }
};

Microbatch RowsOn(const IntrusivePtr<MeshContext>& context) { return ProductParts(context, 1)[0]; }

const std::vector<Times>& UnlikeTimes() {
  static const auto* const times = new std::vector<Times>{{1, 2}, {1, 1}, {4, 8}, {0.5, 1}, {2, 2}, {1, 0.5}};
  return *times;
}

TEST(SegmentCostsTest, AreForwardAndBackwardOfEachOnEveryRank) {
  const DeviceMesh mesh = DeviceMesh::Parse("pp=3");
  RunRanks(3, [&](World& world) {
    SlowModel model(UnlikeTimes());
    int num_made = 0;
    const auto make = [&](const IntrusivePtr<MeshContext>& context) {
      ++num_made;
      EXPECT_EQ(context->mesh().num_ranks(), 1);
      return RowsOn(context);
    };
    const std::vector<double> costs = MeasureSegmentCosts(
        model, world, mesh, make, {.dtype = DType::kF64, .repeats = 2, .clock = [&] { return model.now; }});
    EXPECT_THAT(costs, ElementsAre(3, 2, 12, 1.5, 4, 1.75));  // the last with its loss
    EXPECT_EQ(num_made, world.rank() == 0 ? 1 : 0);

    const Plan plan = {{"layers.*", Pipeline("pp")}, {"", Recompute()}};
    const Plan measured = WithSegmentCosts(plan, costs);
    EXPECT_EQ(measured, WithSegmentCosts(measured, costs));
    EXPECT_EQ(measured.entries()[1], plan.entries()[1]);
    const Plan sized = {{"layers.*", Pipeline("pp", {.sizes = {1, 1, 4}})}, {"", Recompute()}};
    EXPECT_EQ(WithSegmentCosts(sized, costs), measured);
    EXPECT_THAT(ResolvePlan(model, mesh, plan).pipeline->first_segments, ElementsAre(0, 2, 4, 6));
    EXPECT_THAT(ResolvePlan(model, mesh, measured).pipeline->first_segments, ElementsAre(0, 2, 3, 6));
  });
}

// However little, beside what they cost.
TEST(SegmentCostsTest, WhatCostsOtherwiseHasATimeOfItsOwn) {
  RunRanks(1, [](World& world) {
    for (const double first_cost : {1e6, 1e12}) {
      SlowModel model(UnlikeTimes());
      model.first_cost = first_cost;
      const SegmentCostOptions options = {.dtype = DType::kF64, .clock = [&] { return model.now; }};
      EXPECT_THAT(MeasureSegmentCosts(model, world, DeviceMesh(), RowsOn, options),
                  ElementsAre(3, 2, 12, 1.5, 4, 1.75))
          << first_cost;
    }
  });
}

// A clock that runs slower and slower: by what each has taken alone, the first stage would get more layers.
TEST(SegmentCostsTest, EqualLayersGiveEqualStages) {
  RunRanks(1, [](World& world) {
    Products model(10);
    double now = 0, step = 1;
    const auto clock = [&] { return now += step *= 1.25; };
    const std::vector<double> costs = MeasureSegmentCosts(
        model, world, DeviceMesh(), RowsOn, {.dtype = DType::kF64, .repeats = 3, .clock = clock});
    ASSERT_EQ(costs.size(), 10u);
    // Calls 2 and 3, 4 and 5, ... are the ends of the repeats; 3 of each of the layers 1 to 8.
    const auto length = [](int pair) { return std::pow(1.25, 2 * pair); };
    std::vector<double> lengths;
    for (int layer = 1; layer < 9; ++layer) {
      for (int repeat = 1; repeat <= 3; ++repeat) lengths.push_back(length(4 * layer + repeat + 1));
    }
    EXPECT_LT(lengths.front() * 100, lengths.back());
    const double median = (lengths[11] + lengths[12]) / 2;
    for (int layer = 1; layer < 9; ++layer) EXPECT_EQ(costs[layer], costs[1]) << layer;
    EXPECT_NEAR(costs[1] / median, 1, 1e-12);
    std::vector<double> inner = costs;
    inner.front() = inner.back() = 0;  // told apart: the input wants no gradient; the loss
    const Plan plan = WithSegmentCosts({{"layers.*", Pipeline("pp")}}, inner);
    EXPECT_THAT(ResolvePlan(model, DeviceMesh::Parse("pp=4"), plan).pipeline->first_segments,
                ElementsAre(0, 3, 5, 7, 10));
  });
}

TEST(SegmentCostsTest, OfThisMachinesClockToo) {
  RunRanks(2, [](World& world) {
    Products model(6);
    const std::vector<double> costs =
        MeasureSegmentCosts(model, world, DeviceMesh::Parse("pp=2"), RowsOn, {.dtype = DType::kF64});
    ASSERT_EQ(costs.size(), 6u);
    for (const double cost : costs) EXPECT_GT(cost, 0);
    for (int layer = 2; layer < 5; ++layer) EXPECT_EQ(costs[layer], costs[1]);
  });
}

// What is not trained has no backward, and what lies behind the first layer that is trained has one.
TEST(SegmentCostsTest, FrozenLayersCostTheirForward) {
  RunRanks(1, [](World& world) {
    SlowModel model(UnlikeTimes());
    for (const int layer : {0, 1, 3}) model.layers[layer]->set_trainable(false);
    const SegmentCostOptions options = {.dtype = DType::kF64, .clock = [&] { return model.now; }};
    EXPECT_THAT(MeasureSegmentCosts(model, world, DeviceMesh(), RowsOn, options),
                ElementsAre(1, 1, 12, 1.5, 4, 1.75));
    model.set_trainable(false);
    EXPECT_THAT(MeasureSegmentCosts(model, world, DeviceMesh(), RowsOn, options),
                ElementsAre(1, 1, 4, 0.5, 2, 1.25));
  });
}

void ExpectSpec(SegmentedModule& model, World& world) {
  for (const Parameter* parameter : model.RegisteredParameters()) {
    EXPECT_FALSE(parameter->materialized()) << parameter->path();
  }
  for (const ModuleBuffer* buffer : model.RegisteredBuffers()) {
    EXPECT_FALSE(buffer->materialized()) << buffer->path();
  }
  EXPECT_EQ(world.allocator()->stats().live_bytes, 0);
  EXPECT_NE(MessageOf([&] { model.context(); }), "no error");
}

TEST(SegmentCostsTest, OneSegmentIsThereAtATime) {
  RunRanks(2, [](World& world) {
    Products model(6);
    world.allocator()->ResetPeak();
    MeasureSegmentCosts(model, world, DeviceMesh::Parse("pp=2"), RowsOn, {.dtype = DType::kF64});
    ExpectSpec(model, world);
    const MemoryByKind peaks = world.allocator()->by_kind();
    const int64_t of_one = world.rank() == 0 ? kDim * kDim * 8 : 0;
    EXPECT_EQ(peaks[MemoryKind::kParam].peak, of_one);
    EXPECT_LE(peaks[MemoryKind::kGrad].peak, 3 * of_one);  // what a repeat adds, and of activations, too
  });
}

// Products of what a buffer of the model itself has shifted.
class Shifted : public Products {
 public:
  Shifted() : Products(2) {}
  ModuleBuffer shift{this, "shift", {.shape = {kDim}, .initializer = Initializer::Constant(1)}};

 protected:
  std::vector<Segment> MakeSegments() override {
    std::vector<Segment> chain;
    for (const auto& layer : layers) {
      chain.push_back({.modules = {layer.get()}, .cost = 1, .run = [&](const DTensors& x) -> DTensors {
                         return {(*layer)(Add(x[0], shift.Value()))};
                       }});
    }
    return chain;
  }
};

// Every stage has it.
TEST(SegmentCostsTest, OfSegmentsThatReadABufferOfTheModel) {
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2");
  RunRanks(2, [&](World& world) {
    Shifted model;
    const std::vector<double> costs = MeasureSegmentCosts(model, world, mesh, RowsOn, {.dtype = DType::kF64});
    EXPECT_EQ(costs.size(), 2u);
    ExpectSpec(model, world);
    Parallelize(model, world, mesh, WithSegmentCosts(StagedPlan(), costs), {.dtype = DType::kF64});
    EXPECT_TRUE(model.shift.is_here());
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}));
    EXPECT_GT(pipeline.ForwardLoss(ProductParts(model.context(), 2)).Mean().Item(), 0);
  });
}

TEST(SegmentCostsTest, OfSegmentsThatTakeWhatIsUndefined) {
  RunRanks(1, [](World& world) {
    MaskedProducts model;
    const auto make = [](const IntrusivePtr<MeshContext>& context) {
      Microbatch rows = RowsOn(context);
      rows.inputs.emplace_back();
      return rows;
    };
    EXPECT_EQ(MeasureSegmentCosts(model, world, DeviceMesh(), make, {.dtype = DType::kF64}).size(), 2u);
  });
}

TEST(SegmentCostsTest, AfterAnErrorTheModelIsASpec) {
  RunRanks(1, [](World& world) {
    SlowModel model(UnlikeTimes());
    HookHandle hook = model.layers[3]->AddAfterForward(
        [](Module&, const DTensor&) -> DTensor { ThrowInvalidArgument("planted"); });
    const auto measure = [&](const SegmentCostOptions& options = {.dtype = DType::kF64}) {
      return MessageOf([&] { MeasureSegmentCosts(model, world, DeviceMesh(), RowsOn, options); });
    };
    EXPECT_EQ(measure(), "planted");
    ExpectSpec(model, world);
    hook.Remove();
    EXPECT_EQ(measure(), "no error");
    EXPECT_EQ(measure({.repeats = 0}), "MeasureSegmentCosts: expected at least one repeat, got 0");
    Materialize(model, Bind(world, DeviceMesh()));
    EXPECT_EQ(measure(), "MeasureSegmentCosts: the model has values already; expected it before Parallelize");
  });
}

// The others learn of it where they would wait.
TEST(SegmentCostsTest, AnErrorOfTheRankThatMeasuresIsOneOfAll) {
  std::vector<std::string> messages(2);
  RunRanks(2, [&](World& world) {
    SlowModel model(UnlikeTimes());
    const auto make = [](const IntrusivePtr<MeshContext>&) -> Microbatch { ThrowInvalidArgument("planted"); };
    messages[world.rank()] = MessageOf(
        [&] { MeasureSegmentCosts(model, world, DeviceMesh::Parse("pp=2"), make, {.dtype = DType::kF64}); });
  });
  EXPECT_EQ(messages[0], "planted");
  EXPECT_EQ(messages[1], "MeasureSegmentCosts: rank 0 measures for all, and has failed: its error says why");
}

GptConfig SmallGpt() {
  return {
      .vocabulary = 24, .context = 8, .layers = 4, .heads = 2, .dim = 8, .dropout = 0.1, .tied_head = true};
}

Microbatch TokensOn(const IntrusivePtr<MeshContext>& context) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 2 * 8; ++i) tokens.push_back(i * 7 % 24);
  const DTensor rows = DTensor::Distribute(context, Tensor::FromValues<int32_t>({2, 8}, tokens),
                                           Layout(2, context->mesh().num_axes()));
  return {.inputs = {rows}, .targets = rows};
}

// The loss and each gradient of a step of two stages with dropout.
std::map<std::string, std::vector<double>> StepOf(bool measures, bool declares_tie) {
  std::map<std::string, std::vector<double>> values;
  std::mutex mutex;
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2");
  RunRanks(2, [&](World& world) {
    GptConfig config = SmallGpt();
    config.tied_head = !declares_tie;
    Gpt model(config);
    if (declares_tie) dynamic_cast<Linear&>(*model.head).weight.TieTo(model.wte.weight, /*transposed=*/true);
    if (measures) {
      const std::vector<double> costs = MeasureSegmentCosts(model, world, mesh, TokensOn);
      EXPECT_EQ(costs.size(), 6u);
      EXPECT_EQ(costs[1], costs[4]);
    }
    const auto context = Bind(world, mesh);
    context->state().set_seed(5);
    context->state().set_step(3);
    Parallelize(model, context, {{"blocks.*", Pipeline("pp", {.sizes = {2, 2}})}}, {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}));
    Microbatch part = TokensOn(model.context()), next = part;
    next.batch_offset = 2;
    const DTensor total = Full(model.context(), DType::kF64, Shape(), 32);
    const double loss = pipeline.Run(std::vector<Microbatch>{part, next}, total).Item();
    const std::lock_guard<std::mutex> lock(mutex);
    values["loss"] = {loss};
    for (const Parameter* parameter : model.AllParameters()) {
      values[parameter->path()] = parameter->grad().ToLocal().ToVector<double>();
      values[parameter->path() + " value"] = parameter->at_rest().ToLocal().ToVector<double>();
    }
  });
  return values;
}

TEST(SegmentCostsTest, ARunHasTheBitsOfOneWithout) {
  for (const bool declares_tie : {false, true}) {
    EXPECT_EQ(StepOf(/*measures=*/true, declares_tie), StepOf(/*measures=*/false, declares_tie));
  }
}

}  // namespace
}  // namespace weft
