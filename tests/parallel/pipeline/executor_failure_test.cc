// Runs that fail: nothing of one goes into the next.

#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/functions.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "parallel/trainer.h"
#include "runtime/base/error.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

std::vector<std::vector<double>> GradientsOf(Module& model) {
  std::vector<std::vector<double>> gradients;
  for (const Parameter* const parameter : model.AllParameters()) {
    gradients.push_back(parameter->grad().FullTensor().ToVector<double>());
  }
  return gradients;
}

// A program may go on after an error that no other rank knows of: here there is none.
TEST(ExecutorFailureTest, ARunAfterOneThatFailed) {
  RunRanks(1, [](World& world) {
    Products model(2);
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("pp=1"), StagedPlan(), {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 1, .microbatches = 1}));
    const std::vector<Microbatch> parts = ProductParts(model.context(), 1);
    const DTensor total = One(model.context());
    const double expected = pipeline.Run(parts, total).Item();
    HookHandle hook = model.layers[1]->AddAfterForward(
        [](Module&, const DTensor&) -> DTensor { ThrowInvalidArgument("planted"); });
    EXPECT_EQ(MessageOf([&] { pipeline.ForwardOutputs(parts[0].inputs); }), "planted");
    EXPECT_EQ(MessageOf([&] { pipeline.Run(parts, total); }), "planted");
    hook.Remove();
    EXPECT_EQ(pipeline.Run(parts, total).Item(), expected);
    EXPECT_EQ(pipeline.ForwardLoss(parts).sum.Item(), expected);
    EXPECT_EQ(pipeline.ForwardOutputs(parts[0].inputs).size(), 1u);
  });
}

// What is wrong is what was given, and not the schedule.
TEST(ExecutorFailureTest, ARunWithoutATotal) {
  RunRanks(1, [](World& world) {
    Products model(2);
    Parallelize(model, world, DeviceMesh::Parse("pp=1"), StagedPlan(), {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 1, .microbatches = 2}));
    const std::vector<Microbatch> parts = ProductParts(model.context(), 2);
    EXPECT_EQ(MessageOf([&] { pipeline.Run(parts, DTensor()); }),
              "PipelineExecutor::Run: expected a total, a scalar, got an undefined tensor");
    EXPECT_EQ(pipeline.Run(parts, One(model.context())).Item(), pipeline.ForwardLoss(parts).sum.Item());
  });
}

// The last stage alone reads it, but every rank says so, and none waits.
TEST(ExecutorFailureTest, ATotalThatIsNoScalarOfTheModelsPart) {
  const auto run = [](World& world) {
    Products model(2);
    const auto whole =
        Parallelize(model, world, DeviceMesh::Parse("pp=2"), StagedPlan(), {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2}));
    const std::vector<Microbatch> parts = ProductParts(model.context(), 2);
    const auto message = [&](const DTensor& total) { return MessageOf([&] { pipeline.Run(parts, total); }); };
    const std::string start =
        absl::StrCat("PipelineExecutor::Run: expected a total, a scalar on mesh (",
                     model.context()->mesh().ToString(), "), as the model's part, got ");
    EXPECT_EQ(message(One(whole)), absl::StrCat(start, One(whole).ToString(), " on mesh (pp=2)"));
    const DTensor row = Full(model.context(), DType::kF64, {1}, 1);
    EXPECT_EQ(message(row),
              absl::StrCat(start, row.ToString(), " on mesh (", model.context()->mesh().ToString(), ")"));
    EXPECT_EQ(pipeline.Run(parts, One(model.context())).Item(), pipeline.ForwardLoss(parts).sum.Item());
  };
  RunRanks(2, run, {.comm_timeout = std::chrono::seconds(10)});
}

// Half way through, with gradients in buckets and units gathered: the loss and every gradient of the next one are those of a
// model that has run once.
TEST(ExecutorFailureTest, ARunAfterOneThatFailedHalfWay) {
  for (const Style& style : {DataParallel("dp"), FullyShard("dp")}) {
    const Plan plan = {{"layers.*", Pipeline("pp")}, {"layers.*", style}};
    std::map<bool, std::vector<std::vector<double>>> outcomes;  // of rank 0: gradients, the loss
    for (const bool fails_before : {false, true}) {
      RunRanks(2, [&](World& world) {
        Products model(2);
        const auto context =
            Parallelize(model, world, DeviceMesh::Parse("pp=1,dp=2"), plan, {.dtype = DType::kF64});
        PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 1, .microbatches = 3}));
        const std::vector<Microbatch> parts = ProductParts(model.context(), 3);
        const DTensor total = One(model.context());
        if (fails_before) {
          int num_forwards = 0;
          HookHandle hook = model.layers[1]->AddAfterForward([&](Module&, const DTensor& y) -> DTensor {
            if (++num_forwards == 2) ThrowInvalidArgument("planted");
            return y;
          });
          EXPECT_EQ(MessageOf([&] { pipeline.Run(parts, total); }), "planted");
          hook.Remove();
          for (Parameter* const parameter : model.AllParameters()) parameter->ClearGrad();
        }
        const double loss = pipeline.Run(parts, total).Item();
        std::vector<std::vector<double>> outcome = GradientsOf(model);
        outcome.push_back({loss});
        if (world.rank() == 0) outcomes[fails_before] = std::move(outcome);
      });
    }
    ASSERT_GT(outcomes[false].size(), 1u);
    EXPECT_EQ(outcomes[true], outcomes[false]) << style.name;
  }
}

// Fails where a gradient is cast to the dtype in which it is summed over ranks.
class FailsAtCast final : public CallObserver {
 public:
  explicit FailsAtCast(const RankState& state) : state_(state) {}
  void OnCall(const ErasedCall& call, const ResolvedCall& /*plan*/) override {
    if (state_.purpose() == Purpose::kGrad && absl::string_view(call.op.name()) == "cast") {
      ThrowInvalidArgument("planted");
    }
  }

 private:
  const RankState& state_;
};

// Where gradients are brought to rest, behind a bucket of which they rest in the second memory: they go there beside the next
// bucket, which fails.
TEST(ExecutorFailureTest, ARunAfterOneThatFailedBetweenBuckets) {
  Plan plan = {{"layers.*", Pipeline("pp")},
               {"layers.*", DataParallel("dp")},
               {"layers.0", Precision({.reduce = DType::kF32})},
               {"layers.1", Offload({.state = true})}};
  plan.set_scheduler({.bucket_mb = 1e-6});                     // one parameter each, layer 1's first
  std::map<bool, std::vector<std::vector<double>>> gradients;  // of rank 0
  for (const bool fails_before : {false, true}) {
    RunRanks(2, [&](World& world) {
      Products model(2);
      const auto context =
          Parallelize(model, world, DeviceMesh::Parse("pp=1,dp=2"), plan, {.dtype = DType::kF64});
      PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 1, .microbatches = 3}));
      const std::vector<Microbatch> parts = ProductParts(model.context(), 3);
      const DTensor total = One(model.context());
      if (fails_before) {
        FailsAtCast fails(context->state());
        const CallObserverGuard guard(context->state(), &fails);
        EXPECT_EQ(MessageOf([&] { pipeline.Run(parts, total); }), "planted");
        for (Parameter* const parameter : model.AllParameters()) parameter->ClearGrad();
      }
      pipeline.Run(parts, total);
      std::vector<std::vector<double>> outcome = GradientsOf(model);
      if (world.rank() == 0) gradients[fails_before] = std::move(outcome);
    });
  }
  ASSERT_EQ(gradients[false].size(), 2u);
  EXPECT_EQ(gradients[true], gradients[false]);
}

// A trainer, too, goes on as if the step that failed had not been.
TEST(ExecutorFailureTest, AStepAfterOneThatFailedHasNoneOfItsGradients) {
  std::map<bool, std::vector<double>> weights;
  for (const bool fails_before : {false, true}) {
    RunRanks(1, [&](World& world) {
      Products model(2);
      Parallelize(model, world, DeviceMesh::Parse("pp=1"), StagedPlan(), {.dtype = DType::kF64});
      PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 1, .microbatches = 2}));
      Sgd descent(model.AllParameters(), {});
      Trainer trainer(model, descent, {.schedule = [](int64_t) { return 0.1; }});
      if (fails_before) {
        int num_forwards = 0;
        HookHandle hook = model.layers[1]->AddAfterForward([&](Module&, const DTensor& y) -> DTensor {
          if (++num_forwards == 2) ThrowInvalidArgument("planted");
          return y;
        });
        EXPECT_EQ(MessageOf([&] { trainer.Step(pipeline, ProductParts(model.context(), 2)); }), "planted");
        hook.Remove();
      }
      trainer.Step(pipeline, ProductParts(model.context(), 2));
      trainer.Flush();
      weights[fails_before] = model.AllParameters()[0]->at_rest().FullTensor().ToVector<double>();
    });
  }
  EXPECT_EQ(weights[true], weights[false]);
}

}  // namespace
}  // namespace weft
