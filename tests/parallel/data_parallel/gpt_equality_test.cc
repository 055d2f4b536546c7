// A GPT trained over a mesh is the GPT trained on one rank: same initial parameters and dropout masks to the
// bit, same gradients, norms and losses within rounding. Gradients are compared whole and one by one: losses
// under AdamW alone hide wrong ones (a gradient scaled by 2 changes them by 1e-7).

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

#include "absl/strings/str_join.h"
#include "examples/gpt/gpt_plan.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

struct GptSetup {
  std::string name;
  std::string mesh;
  DataPlan data = DataPlan::kDdp;
  bool sequence_parallel = false;
  int64_t batch = 4;
  int64_t context = 16;
  bool tied_head = false;
};

std::ostream& operator<<(std::ostream& out, const GptSetup& setup) { return out << setup.name; }

const std::vector<GptSetup>& GptSetups() {
  static const std::vector<GptSetup> setups = {
      {"ddp_2", "dp=2"},
      {"tp_2", "tp=2"},
      {"ddp_x_tp", "dp=2,tp=2"},
      {"ddp_4", "dp=4"},
      {"fsdp_2", "dp=2", DataPlan::kFsdp},
      {"fsdp_x_tp", "dp=2,tp=2", DataPlan::kFsdp},
      {"sequence_parallel", "tp=2", DataPlan::kDdp, true},
      {"ddp_x_sequence_parallel", "dp=2,tp=2", DataPlan::kDdp, true},
      {"fsdp_x_sequence_parallel", "dp=2,tp=2", DataPlan::kFsdp, true},
      // 2, 2, 1 and no sequences on the ranks of dp.
      {"ddp_4_uneven", "dp=4", DataPlan::kDdp, false, 5},
      {"fsdp_4_uneven", "dp=4", DataPlan::kFsdp, false, 5},
      // 8 and 7 positions of a sequence on the ranks of tp; 3 and 2 sequences on those of dp.
      {"all_uneven", "dp=2,tp=2", DataPlan::kFsdp, true, 5, 15},
      // Heads divide by 4; the vocabulary's pieces are 65, 65, 65 and 62.
      {"tp_4", "tp=4", DataPlan::kDdp, true},
      {"tied_head", "dp=2,tp=2", DataPlan::kFsdp, true, 4, 16, true},
  };
  return setups;
}

TrainingRun RunOf(const GptSetup& setup, const std::string& mesh) {
  TrainingRun run;
  GptConfig config = SmallGptConfig();
  config.tied_head = setup.tied_head;
  run.make_model = MakeGpt(config);
  run.mesh = DeviceMesh::Parse(mesh);
  if (!mesh.empty()) run.plan = GptPlan(run.mesh, setup.data, setup.sequence_parallel);
  run.batch = setup.batch;
  run.context = setup.context;
  return run;
}

class GptEqualityTest : public testing::TestWithParam<GptSetup> {
 protected:
  // Trains as `adjust` says on the setup's mesh and on one rank (which is done once for all setups that share
  // it), and compares.
  void Compare(const std::function<void(TrainingRun&)>& adjust, const Tolerance& tolerance) {
    const GptSetup& setup = GetParam();
    TrainingRun one = RunOf(setup, "");
    adjust(one);
    const auto key =
        std::tuple(one.dtype, one.compute_dtype, one.optimizer, one.batch, one.context, setup.tied_head);
    static std::map<decltype(key), TrainingResult> references;
    const auto [reference, is_new] = references.try_emplace(key);
    if (is_new) reference->second = Train(one);
    TrainingRun run = RunOf(setup, setup.mesh);
    adjust(run);
    const TrainingResult result = Train(run);
    RecordProperty("deviation", DeviationSummary(reference->second, result));
    const std::vector<std::string> differences = Differences(reference->second, result, tolerance);
    EXPECT_TRUE(differences.empty()) << differences.size() << " differences:\n"
                                     << absl::StrJoin(differences, "\n");
  }
};

TEST_P(GptEqualityTest, SgdInF64) {
  Compare([](TrainingRun& run) { run.steps = 50, run.gradient_steps = {1, 2, 50}; }, kF64Tolerance);
}

TEST_P(GptEqualityTest, AdamWInF64) {
  Compare(
      [](TrainingRun& run) {
        run.steps = 50, run.gradient_steps = {1, 2, 50};
        run.optimizer = TrainingRun::Optimizer::kAdamW;
      },
      kF64Tolerance);
}

TEST_P(GptEqualityTest, SgdInF32) {
  Compare([](TrainingRun& run) { run.steps = 50, run.dtype = DType::kF32; }, kF32Tolerance);
}

TEST_P(GptEqualityTest, AdamWInF32) {
  Compare(
      [](TrainingRun& run) {
        run.steps = 50, run.dtype = DType::kF32;
        run.optimizer = TrainingRun::Optimizer::kAdamW;
      },
      kF32Tolerance);
}

// bf16 compute, f32 at rest: parameters are gathered in bf16, gradients reduced in f32.
TEST_P(GptEqualityTest, AdamWWithBF16Compute) {
  Compare(
      [](TrainingRun& run) {
        run.steps = 50, run.dtype = DType::kF32, run.compute_dtype = DType::kBF16;
        run.optimizer = TrainingRun::Optimizer::kAdamW;
      },
      kBF16Tolerance);
}

// Two masks, from the first and second call of the module in a forward; the second counted twice.
class TwoMasks : public Module {
 public:
  TwoMasks(Module* parent, std::string name) : Module(parent, std::move(name)) {}

 protected:
  DTensor Forward(const DTensor& x) override { return Dropout(x, 0.1) + 2 * Dropout(x, 0.1); }
};

class Masked : public Module {
 public:
  TwoMasks inner{this, "inner"};

 protected:
  DTensor Forward(const DTensor& x) override { return inner(x); }
};

// Ones, laid as `layout` says, through TwoMasks at `step`: the whole result.
std::vector<double> Masks(const std::string& mesh_text, const std::string& layout, uint64_t step) {
  std::vector<double> masks;
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    Masked model;
    const auto context = Parallelize(model, world, mesh, {});
    context->state().set_step(step);
    const DTensor ones = Full(context, DType::kF32, {5, 15, 7}, 1, Layout::Parse(layout, mesh));
    const std::vector<double> full = model(ones).FullTensor().ToVector<double>();
    if (world.rank() == 0) masks = full;
  });
  return masks;
}

TEST(DropoutTest, MasksAreTheSameBitsOnEveryLayout) {
  const std::vector<double> one = Masks("", "[-, -, -]", 3);
  for (const char* layout :
       {"[-, -, -]", "[dp, -, -]", "[dp, tp, -]", "[-, tp, dp]", "[tp.dp, -, -]", "[dp.tp, -, -]"}) {
    EXPECT_EQ(Masks("dp=2,tp=2", layout, 3), one) << layout;
  }
  EXPECT_EQ(Masks("dp=4", "[dp, -, -]", 3), one);
  EXPECT_NE(Masks("", "[-, -, -]", 4), one);
  // Each of the two is zero with probability 0.1, apart from the other: 525 elements, four standard
  // deviations.
  const auto share = [&](double value) {
    const double expected = value / 0.9;
    const auto close = [&](double x) { return std::abs(x - expected) < 1e-6; };
    return static_cast<double>(std::count_if(one.begin(), one.end(), close)) /
           static_cast<double>(one.size());
  };
  EXPECT_NEAR(share(0), 0.01, 0.018);
  EXPECT_NEAR(share(1), 0.09, 0.05);
  EXPECT_NEAR(share(2), 0.09, 0.05);
  EXPECT_NEAR(share(3), 0.81, 0.07);
}

INSTANTIATE_TEST_SUITE_P(Meshes, GptEqualityTest, testing::ValuesIn(GptSetups()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace weft
