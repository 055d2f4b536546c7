// A GPT trained on the device cuda beside the same on the CPU: alone and over meshes of two, whose ranks
// exchange tensors through the CPU.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "examples/gpt/gpt_plan.h"
#include "parallel/styles.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

struct Case {
  std::string mesh;
  DataPlan data = DataPlan::kDdp;
  DType dtype = DType::kF64;
  Plan offload = {};
};

class CudaEqualityTest : public testing::TestWithParam<Case> {};

TEST_P(CudaEqualityTest, TrainsAsTheCpuDoes) {
  const GptConfig config = {
      .vocabulary = 37, .context = 8, .layers = 1, .heads = 2, .dim = 16, .dropout = 0.1};
  const Case& param = GetParam();
  TrainingRun run = {.make_model = MakeGpt(config),
                     .dtype = param.dtype,
                     .optimizer = TrainingRun::Optimizer::kAdamW,
                     .batch = 4,
                     .context = config.context,
                     .vocabulary = config.vocabulary,
                     .steps = 3,
                     .gradient_steps = {1}};
  // In f32 Adam's quotients enlarge what the first step rounds: its bound is one of the first step.
  if (param.dtype == DType::kF64) run.gradient_steps.push_back(3);
  const TrainingResult expected = Train(run);
  run.mesh = DeviceMesh::Parse(param.mesh);
  run.plan = GptPlan(run.mesh, param.data, /*sequence_parallel=*/false).Merge(param.offload);
  run.device = DeviceType::kCuda;
  const TrainingResult actual = Train(run);
  const Tolerance& tolerance = param.dtype == DType::kF64 ? kF64Tolerance : kF32Tolerance;
  EXPECT_EQ(Differences(expected, actual, tolerance), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Meshes, CudaEqualityTest,
                         testing::Values(Case{""}, Case{"", DataPlan::kDdp, DType::kF32}, Case{"dp=2"},
                                         Case{"dp=2", DataPlan::kFsdp}, Case{"tp=2"}));

Plan Offloading(const OffloadOptions& options) { return {{"", Offload(options)}}; }

INSTANTIATE_TEST_SUITE_P(
    Offload, CudaEqualityTest,
    testing::Values(
        Case{"", DataPlan::kDdp, DType::kF64, Offloading({.state = true})},
        Case{"", DataPlan::kDdp, DType::kF64, Offloading({.parameters = true, .activations = true})},
        Case{"dp=2", DataPlan::kDdp, DType::kF64, Offloading({.state = true})},
        Case{"dp=2", DataPlan::kZero1, DType::kF64, Offloading({.state = true})},
        Case{"dp=2",
             DataPlan::kZero1,
             DType::kF64,
             {{"", Offload({.state = true})}, {"blocks.*.mlp", Offload({.parameters = true})}}},
        Case{"dp=2", DataPlan::kZero2, DType::kF64, Offloading({.parameters = true})},
        Case{"dp=2", DataPlan::kFsdp, DType::kF64, Offloading({.state = true})},
        Case{"dp=2", DataPlan::kFsdp, DType::kF64, Offloading({.parameters = true, .activations = true})},
        Case{"tp=2", DataPlan::kDdp, DType::kF64, {{"blocks.*.mlp", Offload({.parameters = true})}}}));

}  // namespace
}  // namespace weft
