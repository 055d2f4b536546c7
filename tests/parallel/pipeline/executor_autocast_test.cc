// Stages under an AutocastGuard that changes between runs: what they hand on has another dtype then.

#include <optional>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

constexpr int kMicrobatches = 2;

// Each comes behind others of the same size and of another.
const std::vector<std::optional<DType>>& Guards() {
  static const auto* const guards = new std::vector<std::optional<DType>>{
      std::nullopt, DType::kBF16, DType::kF16, std::nullopt, DType::kF16, DType::kBF16};
  return *guards;
}

// Targets are 0, so that losses have the outputs' precision.
std::vector<Microbatch> SinglePrecisionParts(const IntrusivePtr<MeshContext>& context) {
  std::vector<Microbatch> parts = ProductParts(context, kMicrobatches);
  for (Microbatch& part : parts) {
    part.inputs[0] = Cast(part.inputs[0], DType::kF32);
    part.targets = FullLike(part.inputs[0], 0);
  }
  return parts;
}

// Under each guard.
struct Outcome {
  std::vector<double> evaluated;               // losses of forward alone
  std::vector<double> trained;                 // losses of a step
  std::vector<std::vector<double>> gradients;  // of the first layer

  bool operator==(const Outcome&) const = default;
};

Outcome OneDevice() {
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    Products model(4);
    const auto context = Parallelize(model, world, DeviceMesh(), {}, {});
    const std::vector<Microbatch> parts = SinglePrecisionParts(context);
    for (const std::optional<DType>& dtype : Guards()) {
      const AutocastGuard guard(context->state(), dtype);
      double sum = 0;
      for (const Microbatch& part : parts) {
        const DTensor loss = model.LossOf({model(part.inputs[0])}, part.targets).sum;
        Backward(loss);
        sum += loss.Item();
      }
      outcome.evaluated.push_back(sum);
      outcome.trained.push_back(sum);
      Parameter& first = model.layers[0]->weight;
      outcome.gradients.push_back(first.grad().FullTensor().ToVector<double>());
      for (Parameter* parameter : model.AllParameters()) parameter->ClearGrad();
    }
  });
  return outcome;
}

Outcome TwoStages() {
  Outcome outcome;
  RunRanks(2, [&](World& world) {
    Products model(4);
    const auto context = Parallelize(model, world, DeviceMesh::Parse("pp=2"), StagedPlan(), {});
    RankState& state = context->state();
    const std::vector<Microbatch> parts = SinglePrecisionParts(model.context());
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = kMicrobatches}));
    const DTensor one = Full(model.context(), DType::kF32, Shape(), 1);
    Outcome mine;
    for (const std::optional<DType>& dtype : Guards()) {
      const AutocastGuard guard(state, dtype);
      mine.evaluated.push_back(pipeline.ForwardLoss(parts).sum.Item());
    }
    for (const std::optional<DType>& dtype : Guards()) {
      const AutocastGuard guard(state, dtype);
      mine.trained.push_back(pipeline.Run(parts, one).Item());
      if (world.rank() == 0) {
        mine.gradients.push_back(model.layers[0]->weight.grad().FullTensor().ToVector<double>());
      }
      for (Parameter* parameter : model.AllParameters()) parameter->ClearGrad();
    }
    if (world.rank() == 0) outcome = mine;
  });
  return outcome;
}

TEST(ExecutorAutocastTest, StagesComputeAsOneDeviceUnderEachGuard) {
  const Outcome expected = OneDevice(), actual = TwoStages();
  EXPECT_NE(expected.trained[1], expected.trained[0]);
  EXPECT_NE(expected.trained[1], expected.trained[2]);
  ASSERT_EQ(actual.trained.size(), expected.trained.size());
  for (size_t i = 0; i < expected.trained.size(); ++i) {
    EXPECT_FLOAT_EQ(actual.evaluated[i], expected.evaluated[i]) << i;
    EXPECT_FLOAT_EQ(actual.trained[i], expected.trained[i]) << i;
    EXPECT_EQ(actual.gradients[i], expected.gradients[i]) << i;
  }
}

}  // namespace
}  // namespace weft
