// What a pipeline tells of the loss is the last stage's, however that lies.

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mesh/placement.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

constexpr int kMicrobatches = 3;

// Products that lay their loss and count along axis dp as they are told, if there is one.
class Laid : public Products {
 public:
  explicit Laid(const Placement& along_dp) : Products(2), along_dp_(along_dp) {}
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    const LossSum loss = Products::LossOf(outputs, targets);
    return {.sum = AsSaid(loss.sum), .count = AsSaid(loss.count)};
  }

 private:
  DTensor AsSaid(const DTensor& scalar) const {
    const int dp = scalar.context()->mesh().FindAxis("dp");
    return dp < 0 ? scalar : scalar.Redistribute(scalar.layout().With(dp, along_dp_));
  }

  const Placement along_dp_;
};

// Of the step, of forward alone with its count, and the gradients by path.
struct Outcome {
  std::vector<double> told;
  std::map<std::string, std::vector<double>> gradients;
};

void TakeGradients(Products& model, Outcome* outcome) {
  for (const Parameter* parameter : model.AllParameters()) {
    outcome->gradients[parameter->path()] = parameter->grad().FullTensor().ToVector<double>();
  }
}

Outcome OneDevice() {
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    Products model(2);
    const auto context = Parallelize(model, world, DeviceMesh(), {}, {.dtype = DType::kF64});
    double sum = 0, count = 0;
    for (const Microbatch& part : ProductParts(context, kMicrobatches)) {
      const LossSum loss = model.LossOf({model(part.inputs[0])}, part.targets);
      Backward(loss.sum);
      sum += loss.sum.Item();
      count += loss.count.Item();
    }
    outcome.told = {sum, sum, count};
    TakeGradients(model, &outcome);
  });
  return outcome;
}

// Of all ranks, which are told the same.
Outcome InStages(const Placement& along_dp) {
  Outcome outcome;
  std::mutex mutex;
  RunRanks(4, [&](World& world) {
    Laid model(along_dp);
    Parallelize(model, world, DeviceMesh::Parse("pp=2, dp=2"), StagedPlan(), {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = kMicrobatches}));
    const std::vector<Microbatch> parts = ProductParts(model.context(), kMicrobatches);
    Outcome mine;
    mine.told = {pipeline.Run(parts, One(model.context())).Item()};
    const LossSum forward = pipeline.ForwardLoss(parts);
    mine.told.push_back(forward.sum.Item());
    mine.told.push_back(forward.count.Item());
    TakeGradients(model, &mine);
    const std::lock_guard<std::mutex> lock(mutex);
    if (!outcome.told.empty()) {
      EXPECT_EQ(mine.told, outcome.told) << "ranks are told different losses";
    }
    outcome.told = mine.told;
    outcome.gradients.merge(mine.gradients);
  });
  return outcome;
}

// Terms of a sum, as losses lie whose rows are split; means over the ranks; and whole.
TEST(StageLossTest, IsToldAsOneDevicesHoweverItLies) {
  const Outcome expected = OneDevice();
  ASSERT_EQ(expected.told[2], kMicrobatches * kRows * kDim);
  for (const Placement& along_dp : std::vector<Placement>{Partial(), Partial(ReduceOp::kAvg), Replicate()}) {
    SCOPED_TRACE(ToString(along_dp));
    const Outcome actual = InStages(along_dp);
    EXPECT_THAT(actual.told, testing::Pointwise(testing::DoubleNear(1e-10), expected.told));
    ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
    for (const auto& [path, gradient] : expected.gradients) {
      EXPECT_THAT(actual.gradients.at(path), testing::Pointwise(testing::DoubleNear(1e-12), gradient))
          << path;
    }
  }
}

}  // namespace
}  // namespace weft
