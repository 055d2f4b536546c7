// A model that is spread anew in mid-training, by another plan or on another mesh, goes on as on one device.

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/layers/layers.h"
#include "dtensor/optim/adamw.h"
#include "examples/gpt/gpt_plan.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/pipeline/executor.h"
#include "parallel/pipeline/generator.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/parallel/counter.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

using testing::HasSubstr;

struct Part {
  std::string plan, mesh;                    // a mesh with an axis pp: in stages
  std::optional<Style> more = std::nullopt;  // of the blocks
};

Plan PlanOf(const Part& part) {
  const DeviceMesh mesh = DeviceMesh::Parse(part.mesh);
  const Plan plan = part.plan == "tp" ? GptPlan(mesh, DataPlan::kDdp, /*sequence_parallel=*/true)
                                      : DataPlanNamed(part.plan, mesh);
  const Plan staged = mesh.FindAxis("pp") < 0 ? plan : Plan({{"blocks.*", Pipeline("pp")}}).Merge(plan);
  return part.more ? staged.Merge(Plan({{"blocks.*", *part.more}})) : staged;
}

constexpr int kRows = 4, kTokens = 8;

Tensor Tokens(int step, int first, int rows) {
  std::vector<int32_t> values;
  for (int i = first * kTokens; i < (first + rows) * kTokens; ++i) values.push_back((i * 7 + 3 * step) % 29);
  return Tensor::FromValues<int32_t>({rows, kTokens}, values);
}

// Forward and backward of a batch; its mean loss. In stages, of two microbatches.
double Pass(Gpt& model, const Part& part, int step) {
  const auto& context = model.context();
  const Layout layout = BatchLayout(context->mesh(), PlanOf(part));
  if (!model.stages()) {
    const DTensor x = DTensor::Distribute(context, Tokens(step, 0, kRows), layout);
    const DTensor loss = model.Loss(x, x).Mean();
    Backward(loss);
    return loss.Item();
  }
  const int num_ranks = static_cast<int>(model.stages()->context->mesh().axis_size(model.stages()->axis));
  PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = num_ranks, .microbatches = 2}));
  std::vector<Microbatch> parts;
  for (int first = 0; first < kRows; first += kRows / 2) {
    const DTensor x = DTensor::Distribute(context, Tokens(step, first, kRows / 2), layout);
    parts.push_back({.inputs = {x}, .targets = x, .batch_offset = first});
  }
  return pipeline.Run(parts, Full(context, DType::kF64, Shape(), kRows * kTokens)).Item();
}

void Steps(Gpt& model, Optimizer& optimizer, const Part& part, int from, int to,
           std::vector<double>* losses) {
  for (int step = from; step < to; ++step) {
    model.context()->state().set_step(step);
    losses->push_back(Pass(model, part, step));
    optimizer.Step(1e-2);
    optimizer.ZeroGrad();
  }
}

constexpr int kSteps = 2;  // of each part

// The losses of two steps under each of the parts; without `moves_state` each begins with an optimizer of its own.
std::vector<double> Train(int num_ranks, const std::vector<Part>& parts, bool moves_state = true) {
  std::vector<double> losses;
  RunRanks(num_ranks, [&](World& world) {
    const GptConfig config = {
        .vocabulary = 29, .context = 8, .layers = 2, .heads = 2, .dim = 12, .dropout = 0.1};
    Gpt model(config);
    std::vector<double> mine;
    std::unique_ptr<AdamW> optimizer;
    IntrusivePtr<MeshContext> context;
    for (size_t i = 0; i < parts.size(); ++i) {
      const DeviceMesh mesh = DeviceMesh::Parse(parts[i].mesh);
      context = context ? Bind(context, mesh) : Bind(world, mesh);
      const auto state = optimizer ? optimizer->State() : std::vector<std::pair<std::string, DTensor>>();
      const bool had_stages = model.stages().has_value();
      Parallelize(model, context, PlanOf(parts[i]), {.dtype = DType::kF64});
      optimizer = std::make_unique<AdamW>(model.AllParameters(), AdamWOptions());
      const bool has_stages = model.stages().has_value();
      if (i > 0 && moves_state && (has_stages || had_stages)) {
        MoveState(state, optimizer->State(), *context);
      } else if (i > 0 && moves_state) {
        MoveState(state, optimizer->State());
      }
      const int first = kSteps * static_cast<int>(i);
      Steps(model, *optimizer, parts[i], first, first + kSteps, &mine);
    }
    if (world.rank() == 0) losses = mine;
  });
  return losses;
}

double LargestDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(ParallelizeAgainTest, TrainingGoesOnAsOnOneDevice) {
  const std::vector<Part> ones(3, {"none", ""});
  const std::vector<double> expected = Train(1, ones);
  ASSERT_EQ(expected.size(), 6u);
  EXPECT_LT(expected[5], expected[0] - 0.1);
  const Style offload = Offload({.parameters = true}), recompute = Recompute();
  for (const std::vector<Part>& parts : std::vector<std::vector<Part>>{
           {{"ddp", "dp=4"}, {"fsdp", "dp=4"}, {"zero1", "dp=4"}},
           {{"fsdp", "dp=4"}, {"tp", "dp=2,tp=2"}, {"hsdp", "replica=2,shard=2"}},
           {{"tp", "dp=2,tp=2"}, {"ddp", "dp=4", recompute}, {"fsdp_never", "dp=4"}},
           {{"fsdp", "dp=4", offload}, {"zero2", "dp=4"}, {"ddp", "dp=4", offload}},
           {{"fsdp", "dp=4"}, {"ddp", "pp=2,dp=2"}, {"tp", "dp=2,tp=2"}},
           {{"fsdp", "dp=2,pp=2"}, {"zero1", "pp=2,dp=2"}, {"fsdp", "pp=1,dp=4", recompute}},
           {{"fsdp", "pp=2,dp=2", offload}, {"none", "pp=2,tp=2"}, {"fsdp", "dp=4"}}}) {
    EXPECT_LE(LargestDifference(Train(4, parts), expected), 1e-10)
        << parts[0].plan << ", " << parts[1].plan << ", " << parts[2].plan;
  }
  // The mistake: the optimizer's state is forgotten.
  EXPECT_GT(
      LargestDifference(Train(4, {{"ddp", "dp=4"}, {"fsdp", "dp=4"}, {"zero1", "dp=4"}}, false), expected),
      1e-4);
}

TEST(ParallelizeAgainTest, BuffersAndDTypes) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Counter model;
    Parallelize(model, context, {{"", DataParallel("dp")}});
    const Tensor counts = Tensor::FromValues<float>({4}, {1, 2, 3, 4});
    model.seen.Set(DTensor::Distribute(context, counts, Layout(1, 1)));
    const std::vector<double> weight = model.weight.at_rest().FullTensor().ToVector<double>();
    Parallelize(model, context, {{"", FullyShard("dp")}}, {.dtype = DType::kF64});
    EXPECT_EQ(model.weight.at_rest().layout(), Layout(1, 1).WithShard(0, 0));
    EXPECT_EQ(model.weight.at_rest().dtype(), DType::kF64);
    EXPECT_EQ(model.weight.at_rest().FullTensor().ToVector<double>(), weight);
    EXPECT_EQ(model.seen.Value().FullTensor().ToVector<double>(), (std::vector<double>{1, 2, 3, 4}));
  });
}

// Running statistics of a norm that has no parameters: they go along, and a Materialize that is refused leaves them and their
// context.
TEST(ParallelizeAgainTest, AModelOfBuffersAlone) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    class Norm : public Module {
     public:
      BatchNorm1d norm{this, "norm", 3, {.affine = false}};
    };
    Norm model;
    Parallelize(model, context, {{"", DataParallel("dp")}});
    model.norm.running_mean->Set(Full(context, DType::kF32, {3}, 3));
    const IntrusivePtr<MeshContext> other = Bind(context, DeviceMesh::Parse("tp=2"));
    EXPECT_EQ(MessageOf([&] { Materialize(model, other); }),
              "buffer 'norm.running_mean' already has a value");
    EXPECT_EQ(model.context(), context);
    Parallelize(model, other, {{"norm", ColumnParallel("tp", {.input = Shard(1)})}});
    EXPECT_EQ(model.context(), other);
    EXPECT_EQ(LayoutText(model.norm.running_mean->Value()), "[tp]");
    EXPECT_EQ(model.norm.running_mean->Value().FullTensor().ToVector<double>(), std::vector<double>(3, 3));
    EXPECT_EQ(model.norm.running_var->Value().FullTensor().ToVector<double>(), std::vector<double>(3, 1));
    model.Eval();
    const Tensor y = model.norm(Full(other, DType::kF32, {2, 3}, 3)).FullTensor();
    EXPECT_EQ(y.ToVector<double>(), std::vector<double>(6, 0));
  });
}

// An error that is found when the model has been taken apart leaves its stages as they were; the executor of stages that have
// gone says so.
TEST(ParallelizeAgainTest, AgainThatFailsLateLeavesTheStages) {
  RunRanks(2, [](World& world) {
    const Part part = {"none", "pp=2"};
    Gpt model({.vocabulary = 29, .context = 8, .layers = 2, .heads = 2, .dim = 12});
    const auto context =
        Parallelize(model, world, DeviceMesh::Parse("pp=2"), PlanOf(part), {.dtype = DType::kF64});
    const bool has_first = model.wpe.is_here();
    const double loss = Pass(model, part, 0);
    for (Plan plan : {Plan(), Plan({{"blocks.*", Pipeline("pp")}})}) {
      plan = plan.Merge(Plan({{"blocks.*.mlp", Recompute({.every = 2})}}));
      EXPECT_THAT(MessageOf([&] { Parallelize(model, context, plan); }),
                  HasSubstr("are segments of the model"));
      ASSERT_TRUE(model.stages());
      EXPECT_EQ(model.wpe.is_here(), has_first);
      EXPECT_EQ(Pass(model, part, 0), loss);
    }
    PipelineExecutor pipeline(model, GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 1}));
    Parallelize(model, context, PlanOf(part), {.dtype = DType::kF64});
    EXPECT_EQ(Pass(model, part, 0), loss);
    const DTensor x = DTensor::Distribute(model.context(), Tokens(0, 0, kRows), Layout(2, 1));
    EXPECT_EQ(
        MessageOf([&] { pipeline.ForwardOutputs({x}); }),
        "PipelineExecutor: the model has been spread anew since this executor was made: make another one");
  });
}

TEST(ParallelizeAgainTest, OtherRanksAreRefused) {
  RunRanks(2, [](World& world) {
    Counter model;
    const auto context = Parallelize(model, world, DeviceMesh::Parse("dp=2"), {});
    if (world.rank() == 1) return;
    EXPECT_EQ(MessageOf([&] { Parallelize(model, Bind(context, DeviceMesh()), {}); }),
              "Parallelize: the model has values on mesh (dp=2); expected a mesh of the same ranks, got ()");
  });
}

TEST(ParallelizeAgainTest, AgainWithAWrongPlanChangesNothing) {
  RunRanks(2, [&](World& world) {
    const DeviceMesh mesh = DeviceMesh::Parse("tp=2");
    Gpt model({.vocabulary = 29, .context = 8, .layers = 2, .heads = 2, .dim = 12});
    const auto context = Parallelize(model, world, mesh, {});
    const DTensor before = model.wpe.at_rest();
    try {
      Parallelize(model, context, {{"nowhere", ColumnParallel("tp")}});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    }
    const auto other = Bind(world, mesh);
    try {
      Parallelize(model, other, {});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.message(),
                "Parallelize: the model has values, of another ambient state; bind the mesh by Bind(context, "
                "mesh), with the model's context");
    }
    EXPECT_EQ(model.wpe.at_rest().impl(), before.impl());
    EXPECT_EQ(model.wte.border(), ModuleBorder());
  });
}

// An error that is found when the model has been taken apart: it is put together again as it was.
TEST(ParallelizeAgainTest, AgainThatFailsLateChangesNothing) {
  RunRanks(2, [&](World& world) {
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const Part part = {"fsdp", "dp=2", Recompute({.every = 2})};
    Gpt model({.vocabulary = 29, .context = 8, .layers = 2, .heads = 2, .dim = 12});
    const auto context = Parallelize(model, world, mesh, PlanOf(part), {.dtype = DType::kF64});
    AdamW optimizer(model.AllParameters(), AdamWOptions());
    std::vector<double> losses, expected;
    Steps(model, optimizer, part, 0, 1, &losses);
    const DTensor before = model.wpe.at_rest();
    const ModuleBorder border = model.wte.border();
    // Modules that are no segments of the model.
    EXPECT_THAT(MessageOf([&] {
                  Parallelize(model, context, {{"blocks.*.mlp", Recompute({.every = 2})}});
                }),
                HasSubstr("0 of them are segments of the model"));
    EXPECT_EQ(model.wpe.at_rest().impl(), before.impl());
    EXPECT_EQ(model.wpe.layouts().at_rest, Layout(2, 1).WithShard(0, 0));
    EXPECT_EQ(model.wte.border(), border);
    Steps(model, optimizer, part, 1, 3, &losses);
    // As if it had not been tried.
    Gpt other({.vocabulary = 29, .context = 8, .layers = 2, .heads = 2, .dim = 12});
    Parallelize(other, Bind(world, mesh), PlanOf(part), {.dtype = DType::kF64});
    AdamW other_optimizer(other.AllParameters(), AdamWOptions());
    Steps(other, other_optimizer, part, 0, 3, &expected);
    EXPECT_EQ(losses, expected);
    // And another try may go well.
    Parallelize(model, context, PlanOf({"ddp", "dp=2"}), {.dtype = DType::kF64});
    EXPECT_EQ(model.wpe.layouts().at_rest, Layout(2, 1));
  });
}

// A model that had no values has none of what the plan has done to it before the error: the next plan finds a spec.
TEST(ParallelizeAgainTest, TheFirstThatFailsLateLeavesASpec) {
  RunRanks(2, [](World& world) {
    Gpt model({.vocabulary = 29, .context = 8, .layers = 2, .heads = 2, .dim = 12});
    const auto context = Bind(world, DeviceMesh::Parse("pp=2"));
    const Plan staged = PlanOf({"none", "pp=2"}).Merge(Plan({{"blocks.*.mlp", Recompute({.every = 2})}}));
    EXPECT_THAT(MessageOf([&] { Parallelize(model, context, staged); }),
                HasSubstr("are segments of the model"));
    Parallelize(model, context, {}, {.dtype = DType::kF64});
    EXPECT_EQ(model.AllParameters(), model.RegisteredParameters());
    Gpt other({.vocabulary = 29, .context = 8, .layers = 2, .heads = 2, .dim = 12});
    Parallelize(other, context, {}, {.dtype = DType::kF64});
    EXPECT_EQ(Pass(model, {"none", ""}, 0), Pass(other, {"none", ""}, 0));
  });
}

// A mistake that only the ranks of one stage can see ends Parallelize on all, the first time and again.
TEST(ParallelizeAgainTest, AMistakeInOneStageIsToldOnEveryRank) {
  RunRanks(2, [](World& world) {
    Gpt model({.vocabulary = 29, .context = 8, .layers = 2, .heads = 2, .dim = 12});
    const auto context = Bind(world, DeviceMesh::Parse("pp=2"));
    const Plan staged = PlanOf({"none", "pp=2"});
    const Plan wrong = staged.Merge(Plan({{"head", Recompute({.every = 2})}}));
    for (int i = 0; i < 2; ++i) {
      EXPECT_THAT(MessageOf([&] { Parallelize(model, context, wrong); }),
                  HasSubstr("'head' first: 0 of them are segments of the model"));
      Parallelize(model, context, staged);
    }
  });
}

// What hangs on a parameter hangs there, however the model is spread.
TEST(ParallelizeAgainTest, HooksStay) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Counter model;
    Parallelize(model, context, {{"", DataParallel("dp")}});
    int num_ready = 0;
    HookHandle hook = model.weight.AddGradientReady([&](Parameter& parameter) {
      EXPECT_EQ(&parameter, &model.weight);
      ++num_ready;
    });
    const auto pass = [&] { Backward(Sum(model(Full(context, DType::kF32, {4}, 1)))); };
    pass();
    EXPECT_EQ(num_ready, 1);
    Parallelize(model, context, {{"", FullyShard("dp")}});
    pass();
    EXPECT_EQ(num_ready, 2);
    hook.Remove();
    pass();
    EXPECT_EQ(num_ready, 2);
  });
}

TEST(ParallelizeAgainTest, MoveStateNamesWhatIsMissing) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kF32, {4}, 1), y = Full(context, DType::kF64, {4}, 1);
    EXPECT_EQ(MessageOf([&] {
                MoveState({{"a", x}}, {{"b", x}});
              }),
              "MoveState: there is no 'b' among the 1 tensors to take it from");
    EXPECT_EQ(MessageOf([&] {
                MoveState({{"a", x}}, {{"a", y}});
              }),
              "MoveState: 'a' is f32[4], expected f64[4]");
  });
}

}  // namespace
}  // namespace weft
