// Recompute as a column of plans: the same bits under every plan, for fewer saved bytes and no more gathers.

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/segmented_module.h"
#include "examples/gpt/gpt_plan.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

using testing::HasSubstr;

Plan With(const Plan& plan, const Style& recompute) { return plan.Merge(Plan({{"blocks.*", recompute}})); }

struct Case {
  std::string plan;
  std::string mesh;
  int64_t microbatches = 1;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.plan << " on " << c.mesh << ", " << c.microbatches << " microbatches";
}

Plan PlanOf(const Case& c, const DeviceMesh& mesh) {
  if (c.plan != "sequence") return DataPlanNamed(c.plan, mesh);
  return GptPlan(mesh, DataPlan::kDdp, /*sequence_parallel=*/true);
}

TrainingRun RunOf(const Case& c, const std::optional<Style>& recompute) {
  GptConfig config = SmallGptConfig();
  config.layers = 3;  // groups of two do not divide them
  TrainingRun run;
  run.make_model = MakeGpt(config);
  run.mesh = DeviceMesh::Parse(c.mesh);
  run.plan = PlanOf(c, run.mesh);
  if (recompute) run.plan = With(run.plan, *recompute);
  run.microbatches = c.microbatches;
  run.steps = 2;
  run.gradient_steps = {1, 2};
  return run;
}

class RecomputeEqualityTest : public testing::TestWithParam<Case> {};

TEST_P(RecomputeEqualityTest, EveryFormHasTheBitsOfNone) {
  const TrainingResult expected = Train(RunOf(GetParam(), std::nullopt));
  for (const Style& style :
       {Recompute(), Recompute({.keep = {"contract", "attention"}}), Recompute({.every = 2}),
        Recompute({.keep = {"packed_attention"}, .every = 3}), Recompute({.last_microbatch = false})}) {
    const TrainingResult actual = Train(RunOf(GetParam(), style));
    EXPECT_EQ(actual.losses, expected.losses) << style;
    EXPECT_EQ(actual.grad_norms, expected.grad_norms) << style;
    EXPECT_EQ(actual.gradients, expected.gradients) << style;
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, RecomputeEqualityTest,
                         testing::Values(Case{"none", ""}, Case{"ddp", "dp=2"}, Case{"ddp", "dp=3", 3},
                                         Case{"zero2", "dp=2", 3}, Case{"fsdp", "dp=2"},
                                         Case{"fsdp", "dp=3", 3}, Case{"fsdp_never", "dp=2", 3},
                                         Case{"fsdp_rest", "dp=4"}, Case{"hsdp", "replica=2,shard=2", 3},
                                         Case{"ddp", "dp=2,tp=2"}, Case{"fsdp", "dp=2,tp=2", 3},
                                         Case{"sequence", "dp=1,tp=2"}, Case{"sequence", "dp=2,tp=2", 3}));

// Three blocks; the first products of two are one weight.
std::unique_ptr<Module> TiedBlocks() {
  GptConfig config = SmallGptConfig();
  config.layers = 3;
  auto model = std::make_unique<Gpt>(config);
  model->blocks[1]->mlp.up.weight.TieTo(model->blocks[0]->mlp.up.weight);
  return model;
}

TEST(RecomputeTiedTest, NeighboursMayHaveOneWeight) {
  for (const Case& c : {Case{"none", ""}, Case{"ddp", "dp=2"}}) {
    const auto train = [&](const std::optional<Style>& recompute) {
      TrainingRun run = RunOf(c, recompute);
      run.make_model = TiedBlocks;
      return Train(run);
    };
    const TrainingResult expected = train(std::nullopt), actual = train(Recompute({.every = 2}));
    EXPECT_EQ(actual.losses, expected.losses) << c;
    EXPECT_EQ(actual.grad_norms, expected.grad_norms) << c;
    EXPECT_EQ(actual.gradients, expected.gradients) << c;
  }
}

// Of f64 on one rank, so that bytes are exact.
constexpr GptConfig kConfig = {.vocabulary = 64, .context = 16, .layers = 2, .heads = 4, .dim = 32};
constexpr int64_t kBatch = 4, kItem = 8;
constexpr int64_t kTokens = kBatch * kConfig.context;

// What a forward leaves for backward, and what backward moved, under a plan.
struct Cost {
  int64_t saved = 0;
  int64_t param_bytes = 0;  // sent of parameters, by all ranks
};

Cost CostOf(const std::string& mesh_text, const std::string& plan_name, int64_t layers,
            const std::optional<Style>& recompute) {
  Cost cost;
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunRanks(mesh.num_ranks(), [&](World& world) {
    GptConfig config = kConfig;
    config.layers = layers;
    Gpt model(config);
    Plan plan = DataPlanNamed(plan_name, mesh);
    if (recompute) plan = With(plan, *recompute);
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    const Tensor ones =
        Tensor::FromValues<int32_t>({kBatch, kConfig.context}, std::vector<int32_t>(kTokens, 1));
    const DTensor tokens = DTensor::Distribute(context, ones, BatchLayout(mesh, plan));
    Cost mine;
    for (int step = 1; step <= 3; ++step) {  // the first learns orders
      context->world().ledger().Clear();
      const DTensor loss = model.Loss(tokens, tokens).Mean();
      mine.saved = context->allocator()->by_kind()[MemoryKind::kSaved].live;
      Backward(loss);
      for (Parameter* parameter : model.AllParameters()) {
        parameter->grad().ToLocal();
        parameter->ClearGrad();
      }
      EXPECT_EQ(context->allocator()->by_kind()[MemoryKind::kSaved].live, 0);
      mine.param_bytes = 0;
      for (const LedgerEntry& entry : context->world().ledger().entries()) {
        if (entry.tag.purpose == static_cast<uint8_t>(Purpose::kParam)) mine.param_bytes += entry.num_bytes;
      }
    }
    if (world.rank() == 0) cost = mine;
  });
  return cost;
}

// Chen et al.: of each layer its input, b s d elements.
TEST(RecomputeMemoryTest, OfALayerItsInputIsSaved) {
  const auto per_layer = [](const std::optional<Style>& recompute) {
    return (CostOf("", "none", 6, recompute).saved - CostOf("", "none", 2, recompute).saved) / 4;
  };
  constexpr int64_t kRow = kTokens * kConfig.dim * kItem;     // of d elements a token
  constexpr int64_t kSums = kTokens * kConfig.heads * kItem;  // attention's log-sum-exp
  EXPECT_EQ(per_layer(Recompute()), kRow);
  EXPECT_EQ(per_layer(Recompute({.every = 2})), kRow / 2);
  // Its input, and what qkv (3 d), attention, proj, up (4 d) and down make; down applies GELU, too (4 d).
  EXPECT_EQ(per_layer(Recompute({.keep = {"contract", "attention"}})), 15 * kRow + kSums);
  // The same without down.
  EXPECT_EQ(per_layer(Recompute({.keep = {"linear", "attention"}})), 10 * kRow + kSums);
  // Without any: the input of each norm (2 d) and product (qkv d, proj d, up d, down 4 d before GELU and 4 d after),
  // attention's (3 d); mean and deviation of each row of the norms.
  constexpr int64_t kStatistics = 2 * 2 * kTokens * kItem;
  EXPECT_EQ(per_layer(std::nullopt), 16 * kRow + kSums + kStatistics);
  EXPECT_EQ(per_layer(Recompute({.last_microbatch = false})), per_layer(std::nullopt));
}

// Two inputs, of which the second may be undefined, and two outputs.
class Cross : public Module {
 public:
  Cross(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  DTensors operator()(const DTensor& a, const DTensor& b) {
    return CallModule(*this, {a, b}, /*num_outputs=*/2);
  }

  Linear left{this, "left", kConfig.dim, kConfig.dim};
  Linear right{this, "right", kConfig.dim, kConfig.dim};

 protected:
  DTensors ForwardTensors(const DTensors& x) override {
    const DTensor product = Dropout(Tanh(left(x[0])) * Tanh(right(x[x[1].defined() ? 1 : 0])), 0.3);
    return {x[0] + product, Tanh(product)};
  }
};

class Crosses : public Module {
 public:
  explicit Crosses(int count) {
    for (int i = 0; i < count; ++i)
      blocks.push_back(std::make_unique<Cross>(this, absl::StrCat("blocks.", i)));
  }
  std::vector<std::unique_ptr<Cross>> blocks;

 protected:
  DTensor Forward(const DTensor& x) override {
    DTensors both = {x, DTensor()};
    for (const auto& block : blocks) both = (*block)(both[0], both[1]);
    return both[0] * both[1];
  }
};

struct CrossesOutcome {
  std::vector<double> numbers;  // the loss, and all gradients
  int64_t saved = 0;            // bytes that forward has left
};

CrossesOutcome RunCrosses(const std::string& mesh_text, const Plan& plan, int count) {
  CrossesOutcome outcome;
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  RunRanks(mesh.num_ranks(), [&](World& world) {
    Crosses model(count);
    const auto context = Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
    Layout rows(2, mesh.num_axes());
    if (mesh.FindAxis("dp") >= 0) rows = rows.WithShard(mesh.FindAxis("dp"), 0);
    const DTensor x = Lay(context, RandomF64({kTokens, kConfig.dim}, /*seed=*/1), rows);
    const DTensor loss = Mean(Square(model(x)));
    CrossesOutcome mine;
    mine.saved = context->allocator()->by_kind()[MemoryKind::kSaved].live;
    Backward(loss);
    mine.numbers.push_back(loss.Item());
    for (const Parameter* parameter : model.AllParameters()) {
      for (const double value : parameter->grad().FullTensor().ToVector<double>())
        mine.numbers.push_back(value);
    }
    if (world.rank() == 0) outcome = mine;
  });
  return outcome;
}

TEST(RecomputeTensorsTest, AModuleOfSeveralIsAUnitToo) {
  const Plan ddp = {{"", DataParallel("dp")}}, fsdp = {{"blocks.*", FullyShard("dp")}};
  const Plan tp = {{"blocks.*.left", ColumnParallel("tp")}, {"blocks.*.right", ColumnParallel("tp")}};
  for (const auto& [mesh, plan] : std::vector<std::pair<std::string, Plan>>{
           {"", {}}, {"dp=2", ddp}, {"dp=2", fsdp}, {"tp=2", tp}, {"dp=2,tp=2", tp.Merge(ddp)}}) {
    const CrossesOutcome expected = RunCrosses(mesh, plan, 3);
    EXPECT_GT(expected.numbers.size(), 6u * kConfig.dim * kConfig.dim);
    for (const Style& style : {Recompute(), Recompute({.keep = {"contract"}})}) {
      const CrossesOutcome actual = RunCrosses(mesh, With(plan, style), 3);
      EXPECT_EQ(actual.numbers, expected.numbers) << style << " on " << mesh;
      EXPECT_LE(actual.saved, expected.saved) << style << " on " << mesh;
    }
  }
  const auto saved = [](int count) { return RunCrosses("", With({}, Recompute()), count).saved; };
  EXPECT_EQ(saved(5) - saved(3), 2 * 2 * kTokens * kConfig.dim * kItem) << "each keeps its two inputs";
}

// One layer that each of three segments runs.
class Loop : public SegmentedModule {
 public:
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(outputs[0], targets);
  }
  Linear layer{this, "layer", kConfig.dim, kConfig.dim};

 protected:
  std::vector<Segment> MakeSegments() override {
    const Segment once = {
        .modules = {&layer},
        .cost = 1,
        .run = [this](const DTensors& x) -> DTensors { return {Tanh(layer(x[0]))}; },
    };
    return {once, once, once};
  }
};

TEST(RecomputeTensorsTest, NeighboursMayBeOneModule) {
  const auto run = [](const Plan& plan) {
    std::vector<double> numbers;  // the bytes that forward has left, and all gradients
    RunRanks(1, [&](World& world) {
      Loop model;
      const auto context = Parallelize(model, world, DeviceMesh(), plan, {.dtype = DType::kF64});
      const DTensor x =
          DTensor::Distribute(context, RandomF64({kTokens, kConfig.dim}, /*seed=*/1), Layout(2, 0));
      const DTensor loss = Mean(Square(model(x)));
      numbers.push_back(static_cast<double>(context->allocator()->by_kind()[MemoryKind::kSaved].live));
      Backward(loss);
      for (const Parameter* parameter : model.AllParameters()) {
        for (const double value : parameter->grad().ToLocal().ToVector<double>()) numbers.push_back(value);
      }
    });
    return numbers;
  };
  std::vector<double> expected = run({}), actual = run({{"layer", Recompute({.every = 3})}});
  ASSERT_EQ(expected.size(), 1u + kConfig.dim * kConfig.dim + kConfig.dim);
  EXPECT_LT(actual[0], expected[0]);
  actual[0] = expected[0];
  EXPECT_EQ(actual, expected);
}

// What it makes comes from its parameter alone.
class Table : public Module {
 public:
  Table(Module* parent, std::string name) : Module(parent, std::move(name)) {}
  DTensor operator()(const DTensors& inputs) { return CallModule(*this, inputs)[0]; }

  Parameter values{this, "values", {.shape = {4, 4}, .initializer = Initializer::Normal(0, 1)}};

 protected:
  DTensors ForwardTensors(const DTensors& /*x*/) override { return {Tanh(values.Value())}; }
};

class Tables : public Module {
 public:
  Table block{this, "blocks.0"};
};

TEST(RecomputeTensorsTest, InputsMayAllBeUndefined) {
  RunRanks(2, [](World& world) {
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const auto gradient = [&](const Plan& plan, const DTensors& inputs) {
      Tables model;
      Parallelize(model, world, mesh, plan, {.dtype = DType::kF64});
      Backward(Mean(Square(model.block(inputs))));
      return model.block.values.grad().FullTensor().ToVector<double>();
    };
    const Plan ddp = {{"", DataParallel("dp")}};
    const std::vector<double> expected = gradient(ddp, {});
    EXPECT_EQ(expected.size(), 16u);
    for (const DTensors& inputs : {DTensors(), DTensors{DTensor()}, DTensors{DTensor(), DTensor()}}) {
      EXPECT_EQ(gradient(With(ddp, Recompute()), inputs), expected) << inputs.size() << " inputs";
    }
  });
}

TEST(RecomputeMemoryTest, UnitsAreGatheredOnceInBackward) {
  const Cost none = CostOf("dp=2", "fsdp", 4, std::nullopt);
  const Cost full = CostOf("dp=2", "fsdp", 4, Recompute());
  EXPECT_EQ(full.param_bytes, none.param_bytes);
  EXPECT_GT(full.param_bytes, 0);
}

TEST(RecomputePlanTest, MistakesAreNamed) {
  RunRanks(1, [](World& world) {
    const auto error = [&](const Plan& plan) {
      return MessageOf([&] {
        Gpt model(kConfig);
        Parallelize(model, world, DeviceMesh(), plan, {});
      });
    };
    EXPECT_THAT(error({{"blocks.*", Recompute({.keep = {"contrakt"}})}}),
                testing::AllOf(HasSubstr("\"blocks.*\": Recompute(keep=contrakt)"), HasSubstr("'contract'")));
    EXPECT_THAT(error({{"blocks.*.mlp", Recompute({.every = 2})}}),
                HasSubstr("on 2 modules, 'blocks.0.mlp' first: 0 of them are segments"));
    EXPECT_THAT(error({{"blocks.*.attn.qkv.bias", Recompute()}}), HasSubstr("this style is for modules"));
    Gpt model(kConfig);
    const auto context = Parallelize(model, world, DeviceMesh(), {{"", Recompute()}}, {});
    EXPECT_THAT(MessageOf([&] { const ModuleCall call(model); }), HasSubstr("recompute modules below it"));
  });
}

// A model that is gone cannot be run again, nor can a part of its chain.
TEST(RecomputePlanTest, BackwardAfterTheModelIsAnError) {
  RunRanks(1, [](World& world) {
    const auto error = [&](const Style& recompute) {
      auto model = std::make_unique<Gpt>(kConfig);
      const auto context = Parallelize(*model, world, DeviceMesh(), {{"blocks.*", recompute}}, {});
      const Tensor ones = Tensor::FromValues<int32_t>({1, 4}, std::vector<int32_t>(4, 1));
      const DTensor tokens = DTensor::Distribute(context, ones, Layout(2, 0));
      const DTensor loss = model->Loss(tokens, tokens).Mean();
      model.reset();
      return MessageOf([&] { Backward(loss); });
    };
    EXPECT_THAT(error(Recompute()), HasSubstr("module 'blocks.1' is gone: backward cannot compute it again"));
    EXPECT_THAT(error(Recompute({.every = 2})),
                HasSubstr("module '' is gone: backward cannot compute it again"));
  });
}

}  // namespace
}  // namespace weft
