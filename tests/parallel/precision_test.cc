// Precision as a column of plans, autocast regions, and the loss scale of f16.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/call/call_observer.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/loss_scale.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/trainer.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/data_parallel_cases.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

using testing::HasSubstr;

// bf16 but for the norms.
const Plan& HalfWithNormsInSingle() {
  static const Plan* const plan = new Plan{{"", Precision({.param = DType::kBF16})},
                                           {"blocks.*.ln_1", Precision({.param = DType::kF32})},
                                           {"blocks.*.ln_2", Precision({.param = DType::kF32})},
                                           {"ln_f", Precision({.param = DType::kF32})}};
  return *plan;
}

TrainingRun RunOf(const std::string& plan, const std::string& mesh, int64_t microbatches) {
  TrainingRun run;
  run.make_model = MakeGpt(SmallGptConfig());
  run.mesh = DeviceMesh::Parse(mesh);
  run.plan = DataPlanNamed(plan, run.mesh).Merge(HalfWithNormsInSingle());
  run.dtype = DType::kF32;
  run.microbatches = microbatches;
  return run;
}

struct Case {
  std::string plan;
  std::string mesh;
  int64_t microbatches = 1;
  std::optional<DType> reduce = std::nullopt;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.plan << " on " << c.mesh; }

class PrecisionEqualityTest : public testing::TestWithParam<Case> {};

// Every dtype of the one table of bounds (training_run.h): bf16 compute.
TEST_P(PrecisionEqualityTest, IsOneDevices) {
  const Case& c = GetParam();
  static const TrainingResult* const one = new TrainingResult(Train(RunOf("none", "", 1)));
  TrainingRun run = RunOf(c.plan, c.mesh, c.microbatches);
  if (c.reduce) run.plan = run.plan.Merge({{"", Precision({.reduce = c.reduce})}});
  EXPECT_THAT(Differences(*one, Train(run), kBF16Tolerance), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Plans, PrecisionEqualityTest,
                         testing::Values(Case{"ddp", "dp=2"}, Case{"ddp", "dp=2,tp=2", 3},
                                         Case{"zero2", "dp=3", 3}, Case{"fsdp", "dp=2"},
                                         Case{"fsdp", "dp=2,tp=2", 3}, Case{"hsdp", "replica=2,shard=2"},
                                         Case{"ddp", "dp=2", 1, DType::kBF16},
                                         Case{"fsdp", "dp=2", 3, DType::kBF16},
                                         Case{"hsdp", "replica=2,shard=2", 1, DType::kBF16}));

// The mutant: norms that are not cast back are seen.
TEST(PrecisionTest, OtherDtypesShow) {
  TrainingRun run = RunOf("none", "", 1);
  run.steps = 3;  // at first all weights of norms are 1
  const TrainingResult mixed = Train(run);
  run.plan = {{"", Precision({.param = DType::kBF16})}};
  const TrainingResult half = Train(run);
  run.plan = {};
  const TrainingResult single = Train(run);
  EXPECT_NE(mixed.losses, half.losses);
  EXPECT_THAT(Differences(single, half, kF32Tolerance), testing::Not(testing::IsEmpty()));
}

// The dtypes in which modules' ops run.
class DTypesSeen : public CallObserver {
 public:
  explicit DTypesSeen(const RankState& state) : state_(state) {}
  void OnCall(const ErasedCall& call, const ResolvedCall& plan) override {
    const std::string name = call.op.name();
    if (name == "cast" || !IsFloating(plan.output_types[0].dtype)) return;
    seen[absl::StrCat(state_.PathName(state_.path_id()), " ", name)].insert(
        std::string(DTypeName(plan.output_types[0].dtype)));
  }
  std::map<std::string, std::set<std::string>> seen;

 private:
  const RankState& state_;
};

constexpr GptConfig kConfig = {.vocabulary = 64, .context = 16, .layers = 1, .heads = 4, .dim = 32};

DTensor OnesOf(const IntrusivePtr<MeshContext>& context, const Layout& layout) {
  const Tensor ones = Tensor::FromValues<int32_t>({4, 8}, std::vector<int32_t>(32, 1));
  return DTensor::Distribute(context, ones, layout);
}

TEST(PrecisionTest, ModulesComputeInTheirs) {
  RunRanks(1, [](World& world) {
    Gpt model(kConfig);
    const Plan plan = HalfWithNormsInSingle().Merge({{"head", Precision({.output = DType::kF32})}});
    const auto context = Parallelize(model, world, DeviceMesh(), plan, {});
    DTypesSeen forward(context->state());
    DTensor logits;
    {
      const CallObserverGuard guard(context->state(), &forward);
      logits = model(OnesOf(context, Layout(2, 0)));
    }
    const auto only = [](const std::string& dtype) { return std::set<std::string>{dtype}; };
    EXPECT_EQ(forward.seen["blocks.0.ln_1 layer_norm"], only("f32"));
    EXPECT_EQ(forward.seen["blocks.0.attn.qkv linear"], only("bf16"));
    EXPECT_EQ(forward.seen["blocks.0.attn packed_attention"], only("bf16"));
    EXPECT_EQ(forward.seen["blocks.0.mlp.down gelu_linear"], only("bf16"));
    EXPECT_EQ(forward.seen["blocks.0 add"], only("bf16"));
    EXPECT_EQ(forward.seen["ln_f layer_norm"], only("f32"));
    EXPECT_EQ(forward.seen["head contract"], only("bf16"));
    EXPECT_EQ(logits.dtype(), DType::kF32);
    Backward(Sum(logits));
    for (const Parameter* parameter : model.AllParameters()) {
      EXPECT_EQ(parameter->grad().dtype(), DType::kF32) << parameter->path();
    }
  });
}

// Modules that no entry reaches compute in the run's dtype, where the plan has any precision.
TEST(PrecisionTest, TheRestIsTheRuns) {
  RunRanks(1, [](World& world) {
    Gpt model(kConfig);
    const auto context =
        Parallelize(model, world, DeviceMesh(), {{"blocks.*.ln_1", Precision({.param = DType::kF32})}},
                    {.compute_dtype = DType::kBF16});
    EXPECT_EQ(model(OnesOf(context, Layout(2, 0))).dtype(), DType::kBF16);
    EXPECT_EQ(model.blocks[0]->ln_1.weight.compute_dtype(), DType::kF32);
    EXPECT_EQ(model.blocks[0]->ln_2.weight.compute_dtype(), DType::kBF16);
  });
}

// Bytes sent by all ranks for a purpose, in the third step.
int64_t BytesOf(const std::string& plan_name, const Plan& precision, Purpose purpose) {
  int64_t num_bytes = 0;
  RunRanks(2, [&](World& world) {
    Gpt model(kConfig);
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const auto context = Parallelize(model, world, mesh, DataPlanNamed(plan_name, mesh).Merge(precision), {});
    const DTensor tokens = OnesOf(context, Layout(2, 1).WithShard(0, 0));
    for (int step = 1; step <= 3; ++step) {
      world.ledger().Clear();
      Backward(model.Loss(tokens, tokens).Mean());
      for (Parameter* parameter : model.AllParameters()) {
        EXPECT_EQ(parameter->grad().ToLocal().dtype(), DType::kF32);
        parameter->ClearGrad();
      }
    }
    if (world.rank() != 0) return;
    for (const LedgerEntry& entry : world.ledger().entries()) {
      if (entry.tag.purpose == static_cast<uint8_t>(purpose)) num_bytes += entry.num_bytes;
    }
  });
  return num_bytes;
}

TEST(PrecisionTest, WhatMovesIsInItsDtype) {
  for (const std::string plan : {"ddp", "zero2", "fsdp"}) {
    const int64_t gradients = BytesOf(plan, {}, Purpose::kGrad);
    const Plan reduced = {{"", Precision({.reduce = DType::kBF16})}};
    EXPECT_EQ(BytesOf(plan, reduced, Purpose::kGrad) * 2, gradients) << plan;
    const Plan wide = {{"", Precision({.reduce = DType::kF64})}};
    EXPECT_EQ(BytesOf(plan, wide, Purpose::kGrad), gradients * 2) << plan;
    // In which compute reads parameters says nothing of how gradients are summed.
    const Plan half = {{"", Precision({.param = DType::kBF16})}};
    EXPECT_EQ(BytesOf(plan, half, Purpose::kGrad), gradients) << plan;
  }
  const Plan half = {{"", Precision({.param = DType::kBF16})}};
  EXPECT_EQ(BytesOf("fsdp", half, Purpose::kParam) * 2, BytesOf("fsdp", {}, Purpose::kParam));
}

TEST(PrecisionTest, PlansSayIt) {
  const Plan plan = {
      {"", Precision({.param = DType::kBF16, .reduce = DType::kF32})},
      {"head", Precision({.output = DType::kF32})},
      {"blocks.*", Recompute({.keep = {"contract", "attention"}, .every = 2, .last_microbatch = false})}};
  EXPECT_EQ(Plan::FromJson(plan.ToJson()), plan);
  EXPECT_THAT(plan.ToString(), HasSubstr("Precision(param=bf16, reduce=f32)"));
  EXPECT_THAT(plan.ToString(),
              HasSubstr("Recompute(keep=contract,attention, every=2, last_microbatch=false)"));
  EXPECT_THAT(MessageOf([] {
                Plan::FromJson(R"({"entries": [{"path": "", "style": "Precision", "param": "int8"}]})");
              }),
              HasSubstr("expected f16 or bf16 or f32 or f64, got \"int8\""));
  RunRanks(1, [&](World&) {
    Gpt model(kConfig);
    const ResolvedPlan resolved = ResolvePlan(model, DeviceMesh(), HalfWithNormsInSingle());
    const std::string table = resolved.ToTable(model, DeviceMesh());
    EXPECT_THAT(table, HasSubstr("bf16 [-, -]"));
    EXPECT_THAT(table, HasSubstr("f32 [-]"));
  });
}

TEST(AutocastTest, ProductsInTheGuardsDtypeTheRestAsItIs) {
  RunRanks(1, [](World& world) {
    const auto context = Bind(world, DeviceMesh());
    RankState& state = context->state();
    const Layout whole(2, 0);
    const DTensor x = Full(context, DType::kF32, {4, 8}, 0.5).RequiresGrad();
    const DTensor w = Full(context, DType::kF32, {8, 8}, 0.25).RequiresGrad();
    const DTensor scale = Full(context, DType::kF32, {8}, 1);
    {
      const AutocastGuard guard(state, DType::kBF16);
      const DTensor y = MatMul(x, w);
      EXPECT_EQ(y.dtype(), DType::kBF16);
      EXPECT_EQ(Exp(x).dtype(), DType::kF32);
      EXPECT_EQ((x + y).dtype(), DType::kF32);
      EXPECT_EQ((y * y).dtype(), DType::kBF16);
      EXPECT_EQ(Softmax(y, -1).dtype(), DType::kF32);
      EXPECT_EQ(RmsNormalize(y, scale).dtype(), DType::kF32);
      EXPECT_EQ(MseLoss(y, x).sum.dtype(), DType::kF32);
      {
        const AutocastGuard off(state, std::nullopt);
        EXPECT_EQ(MatMul(x, w).dtype(), DType::kF32);
      }
      Backward(Sum(x + y));
    }
    EXPECT_EQ(MatMul(x, w).dtype(), DType::kF32);
    EXPECT_EQ(x.grad().dtype(), DType::kF32);
    EXPECT_EQ(w.grad().dtype(), DType::kF32);
    EXPECT_EQ(w.grad().FullTensor().ToVector<double>()[0], 4 * 0.5);
    EXPECT_EQ(x.grad().FullTensor().ToVector<double>()[0], 1 + 8 * 0.25);
    EXPECT_THAT(MessageOf([&] { const AutocastGuard guard(state, DType::kI32); }), HasSubstr("got i32"));
  });
}

// torch.amp.GradScaler's rule, in numbers.
TEST(LossScaleTest, FollowsTheRule) {
  RunRanks(2, [](World& world) {
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    constexpr int kInterval = 3;
    LossScale scale(context, {.initial = 1024, .interval = kInterval});
    double expected = 1024;
    int good = 0;
    const double bad[] = {INFINITY, NAN, -INFINITY};
    for (int step = 0; step < 40; ++step) {
      const bool overflows = step % 7 == 4 || step % 11 == 9;
      scale.Update(Full(context, DType::kF32, Shape(), overflows ? bad[step % 3] : 1.5));
      good = overflows ? 0 : good + 1;
      if (overflows) expected *= 0.5;
      if (good == kInterval) {
        expected *= 2;
        good = 0;
      }
      EXPECT_EQ(scale.value().Item(), expected) << "step " << step;
      EXPECT_EQ(scale.State()[1].second.Item(), good) << "step " << step;
    }
    LossScale large(context, {.initial = 3e38, .interval = 1});
    large.Update(Full(context, DType::kF32, Shape(), 1));
    EXPECT_EQ(large.value().Item(), static_cast<double>(3e38f));
    EXPECT_THAT(MessageOf([&] { LossScale(context, {.growth = 1}); }),
                HasSubstr("growth: expected a number above 1"));
  });
}

// A training in f16 whose loss overflows on one rank in step 3.
struct Outcome {
  std::vector<double> losses, scales;
  std::vector<bool> updated;
  std::vector<int64_t> updates;
  FullTensors parameters;
  bool operator==(const Outcome&) const = default;
};

struct ScaledRun {
  std::string mesh = "dp=2";
  std::string plan = "ddp";
  int64_t steps = 6;
  std::string save = {}, resume = {};  // after and before all steps
  int64_t first = 1;
  bool overflows = true;
};

Outcome TrainScaled(const ScaledRun& run) {
  Outcome outcome;
  const DeviceMesh mesh = DeviceMesh::Parse(run.mesh);
  RunRanks(mesh.num_ranks(), [&](World& world) {
    Gpt model(kConfig);
    const Plan plan = DataPlanNamed(run.plan, mesh);
    const auto context = Parallelize(model, world, mesh, plan, {.compute_dtype = DType::kF16});
    AdamW optimizer(model.AllParameters(), {});
    LossScale scale(model.context(), {.initial = 4096, .interval = 2});
    Trainer trainer(model, optimizer, {.schedule = [](int64_t) { return 1e-3; }, .loss_scale = &scale});
    if (!run.resume.empty()) {
      SafetensorsReader reader(run.resume);
      LoadParameters(reader, model);
      LoadOptimizerState(reader, optimizer);
      LoadTensors(reader, scale.State());
      trainer.set_step(run.first - 1);
    }
    Layout rows(2, mesh.num_axes());
    if (mesh.FindAxis("dp") >= 0) rows = rows.WithShard(mesh.FindAxis("dp"), 0);
    const DTensor tokens = OnesOf(context, rows);
    Outcome mine;
    const auto take = [&](const std::optional<StepMetrics>& metrics) {
      if (!metrics) return;
      mine.losses.push_back(metrics->loss);
      mine.scales.push_back(metrics->loss_scale);
      mine.updated.push_back(metrics->updated);
    };
    for (int64_t step = run.first; step <= run.steps; ++step) {
      const bool overflows = run.overflows && step == 3;
      // A loss of the same value whose gradient is too large for f16 in the first row alone, which one rank has.
      const auto loss = [&model, tokens, overflows] {
        const DTensor logits = model(tokens);
        DTensor mean = CrossEntropy(logits, tokens).Mean();
        if (!overflows) return mean;
        const DTensor first = Sum(Cast(Slice(logits, 0, 0, 1), DType::kF32));
        return mean + Scale(first - first.Detach(), 1e5);
      };
      take(trainer.Step(32, loss));
      mine.updates.push_back(static_cast<int64_t>(optimizer.updates().Item()));
    }
    take(trainer.Flush());
    for (const Parameter* parameter : model.AllParameters()) {
      mine.parameters[parameter->path()] = parameter->at_rest().FullTensor().ToVector<double>();
    }
    if (!run.save.empty()) {
      auto tensors = CheckpointTensors(model, optimizer);
      for (const auto& tensor : scale.State()) tensors.push_back(tensor);
      SaveTensors(run.save, tensors, {});
    }
    if (world.rank() == 0) outcome = mine;
  });
  return outcome;
}

TEST(LossScaleTest, AnOverflowAnywhereSkipsTheUpdateEverywhere) {
  for (const auto& [plan, mesh] : std::vector<std::pair<std::string, std::string>>{
           {"ddp", "dp=2"}, {"zero1", "dp=2"}, {"fsdp", "dp=2"}, {"ddp", "dp=2,tp=2"}}) {
    const Outcome outcome = TrainScaled({.mesh = mesh, .plan = plan});
    EXPECT_EQ(outcome.updated, (std::vector<bool>{true, true, false, true, true, true})) << plan;
    EXPECT_EQ(outcome.updates, (std::vector<int64_t>{1, 2, 2, 3, 4, 5})) << plan;
    EXPECT_EQ(outcome.scales, (std::vector<double>{4096, 8192, 4096, 4096, 8192, 8192})) << plan;
    EXPECT_EQ(outcome.losses[2] > outcome.losses[3] || outcome.losses[2] == outcome.losses[3], true) << plan;
    EXPECT_LT(outcome.losses[5], outcome.losses[0]) << plan;
    for (const auto& [path, values] : outcome.parameters) {
      for (const double value : values) ASSERT_TRUE(std::isfinite(value)) << path;
    }
  }
}

// Powers of two: with no overflow, and nothing that vanishes, the scale is not seen in f32 compute of the update.
TEST(LossScaleTest, IsState) {
  const std::string path = testing::TempDir() + "/scaled.safetensors";
  const Outcome whole = TrainScaled({});
  TrainScaled({.steps = 3, .save = path});
  const Outcome rest = TrainScaled({.resume = path, .first = 4});
  EXPECT_EQ(rest.parameters, whole.parameters);
  EXPECT_EQ(rest.scales, (std::vector<double>{4096, 8192, 8192}));
  for (const auto& [plan, mesh] : std::vector<std::pair<std::string, std::string>>{
           {"fsdp", "dp=4"}, {"none", ""}, {"ddp", "dp=1,tp=2"}}) {
    const Outcome other = TrainScaled({.mesh = mesh, .plan = plan, .resume = path, .first = 4});
    EXPECT_EQ(other.scales, rest.scales) << plan;
    for (size_t i = 0; i < other.losses.size(); ++i)
      EXPECT_NEAR(other.losses[i], rest.losses[i], 5e-3) << plan;
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace weft
