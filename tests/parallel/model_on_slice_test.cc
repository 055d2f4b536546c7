// Models on slices of a mesh, as the stages of a pipeline are; and pipelines on slices.

#include <map>
#include <mutex>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/pipeline/products.h"

namespace weft {
namespace {

GptConfig OneBlock() { return {.vocabulary = 257, .context = 16, .layers = 1, .heads = 4, .dim = 32}; }

// A plan on a slice of a mesh is the plan on a mesh of the remaining axes: the same losses, bit by bit.
TEST(ModelOnSliceTest, AModelOnASliceLearnsWhatOneOnASmallMeshDoes) {
  const Plan plan = {{"blocks.*", FullyShard("dp")}, {"", FullyShard("dp")}};
  const auto losses = [&](const IntrusivePtr<MeshContext>& context) {
    Gpt model(OneBlock());
    Parallelize(model, context, plan, {.dtype = DType::kF64});
    const Layout batch(context->mesh(), 2, {{"dp", Shard(0)}});
    const DTensor tokens = Full(context, DType::kI32, {4, 8}, 1, batch);
    std::vector<double> values;
    for (int step = 0; step < 3; ++step) {
      const DTensor loss = model.Loss(tokens, tokens).Mean();
      values.push_back(loss.Item());
      Backward(loss);
      for (Parameter* parameter : model.AllParameters()) values.push_back(Sum(parameter->grad()).Item());
    }
    return values;
  };
  std::vector<double> expected;
  RunRanks(2, [&](World& world) {
    const std::vector<double> got = losses(Bind(world, DeviceMesh::Parse("dp=2")));
    if (world.rank() == 0) expected = got;
  });
  RunRanks(4, [&](World& world) {
    const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=2");
    const auto root = Bind(world, mesh);
    const int64_t stage = mesh.CoordinateOf(world.rank())[0];
    if (stage == 1) losses(Bind(root, mesh.Slice({{"pp", 1}})));  // twice as much as the other slice
    EXPECT_EQ(losses(Bind(root, mesh.Slice({{"pp", stage}}))), expected);
  });
}

// The same of a pipeline: its loss, by training and by forward alone, and the gradients of each stage.
TEST(ModelOnSliceTest, APipelineOnASliceComputesWhatOneOnASmallMeshDoes) {
  constexpr int kMicrobatches = 3;
  const auto run = [](const IntrusivePtr<MeshContext>& context) {
    Products model(4);
    Parallelize(model, context, StagedPlan(), {.dtype = DType::kF64});
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = kMicrobatches}));
    const std::vector<Microbatch> parts = ProductParts(model.context(), kMicrobatches);
    std::vector<double> values = {pipeline.Run(parts, One(model.context())).Item()};
    const LossSum forward = pipeline.ForwardLoss(parts);
    values.push_back(forward.sum.Item());
    values.push_back(forward.count.Item());
    for (const Parameter* parameter : model.AllParameters()) values.push_back(Sum(parameter->grad()).Item());
    return values;
  };
  std::map<int, std::vector<double>> expected;  // by stage
  std::mutex mutex;
  RunRanks(2, [&](World& world) {
    const std::vector<double> got = run(Bind(world, DeviceMesh::Parse("pp=2")));
    const std::lock_guard<std::mutex> lock(mutex);
    expected[world.rank()] = got;
  });
  ASSERT_EQ(expected[0].size(), 5u);
  EXPECT_GT(expected[0][0], 0);
  EXPECT_EQ(expected[0][1], expected[0][0]);
  EXPECT_EQ(expected[0][2], kMicrobatches * kRows * kDim);
  RunRanks(4, [&](World& world) {
    const DeviceMesh mesh = DeviceMesh::Parse("half=2, pp=2");
    const auto root = Bind(world, mesh);
    const std::vector<int64_t> coordinate = mesh.CoordinateOf(world.rank());
    EXPECT_EQ(run(Bind(root, mesh.Slice({{"half", coordinate[0]}}))),
              expected.at(static_cast<int>(coordinate[1])));
  });
}

}  // namespace
}  // namespace weft
