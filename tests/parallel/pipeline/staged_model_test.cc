// Models cut into stages: what each rank has of them, and that stages one after the other compute what one device does.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/checkpoint/model_state.h"
#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/segmented_module.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "runtime/tensor/copy.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GptConfig Config(bool tied_head = false) {
  return {.vocabulary = 40,
          .context = 8,
          .layers = 3,
          .heads = 4,
          .dim = 16,
          .dropout = 0.1,
          .tied_head = tied_head};
}

const Plan& PipelinedPlan() {
  static const Plan* const plan = new Plan{{"blocks.*", Pipeline("pp")}, {"", DataParallel("dp")}};
  return *plan;
}

std::vector<int> StagesOf(const ResolvedPlan& plan, const std::string& path) {
  for (const ResolvedParameter& parameter : plan.parameters) {
    if (parameter.path == path) return parameter.stages;
  }
  return {-1};
}

TEST(StagedModelTest, ParametersGoWithTheSegmentsThatReadThem) {
  Gpt model(Config(/*tied_head=*/true));
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=2");
  const ResolvedPlan plan = ResolvePlan(model, mesh, PipelinedPlan());
  ASSERT_TRUE(plan.pipeline.has_value());
  EXPECT_EQ(plan.pipeline->axis, 0);
  EXPECT_THAT(plan.pipeline->stage_ranks, ElementsAre(0, 1));
  EXPECT_THAT(plan.pipeline->first_segments, ElementsAre(0, 3, 5));  // embed, three blocks, head
  EXPECT_THAT(StagesOf(plan, "wte.weight"), ElementsAre(0, 1));      // the head reads it, too
  EXPECT_THAT(StagesOf(plan, "wpe"), ElementsAre(0));
  EXPECT_THAT(StagesOf(plan, "blocks.1.mlp.up.weight"), ElementsAre(0));
  EXPECT_THAT(StagesOf(plan, "blocks.2.ln_1.bias"), ElementsAre(1));
  EXPECT_THAT(StagesOf(plan, "ln_f.weight"), ElementsAre(1));
  const std::string table = plan.ToTable(model, mesh);
  EXPECT_THAT(table.substr(0, table.find('\n')), HasSubstr("stages"));
}

TEST(StagedModelTest, SizesCostsAndChunksSayWhereToCut) {
  Gpt model(Config());
  const auto firsts = [&](const char* mesh, const PipelineOptions& options) {
    const Plan plan = {{"blocks.*", Pipeline("pp", options)}};
    return ResolvePlan(model, DeviceMesh::Parse(mesh), Plan::FromJson(plan.ToJson()))
        .pipeline->first_segments;
  };
  EXPECT_THAT(firsts("pp=2", {.sizes = {1, 2}}), ElementsAre(0, 2, 5));
  EXPECT_THAT(firsts("pp=2", {.costs = {0, 5, 1, 1, 2}}), ElementsAre(0, 2, 5));
  EXPECT_THAT(firsts("pp=2", {.costs = {0, 1, 1, 1.5, 9}}), ElementsAre(0, 3, 5));
  EXPECT_THAT(firsts("pp=2", {.costs = {0, 10000002, 10000000, 10000001, 0}}), ElementsAre(0, 2, 5));
  EXPECT_THAT(firsts("pp=2", {.costs = {0, 10000001, 10000000, 10000002, 0}}), ElementsAre(0, 3, 5));
  EXPECT_THAT(firsts("pp=3", {}), ElementsAre(0, 2, 3, 5));
  Gpt four({.vocabulary = 40, .context = 8, .layers = 4, .heads = 4, .dim = 16});
  const Plan plan = {{"blocks.*", Pipeline("pp", {.chunks = 2, .order = StageOrder::kV})}};
  const ResolvedPlan there_and_back = ResolvePlan(four, DeviceMesh::Parse("pp=2"), plan);
  EXPECT_THAT(there_and_back.pipeline->stage_ranks, ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(there_and_back.pipeline->first_segments, ElementsAre(0, 2, 3, 4, 6));
}

class Plain : public Module {
 public:
  Linear a{this, "a", 4, 4};
};

TEST(StagedModelTest, WhatCannotBeCutIsSaid) {
  Gpt model(Config());
  const auto message = [&](Module& of, const Plan& plan) {
    return InvalidArgumentMessage([&] { ResolvePlan(of, DeviceMesh::Parse("pp=4, dp=2"), plan); });
  };
  const std::string entry = "plan entry \"blocks.*\": Pipeline(pp";
  EXPECT_EQ(message(model, {{"blocks.*", Pipeline("pp")}}),
            entry + "): a chain of 3 segments cannot be cut into 4 stages: each has at least one");
  EXPECT_EQ(message(model, {{"blocks.*", Pipeline("pp", {.sizes = {1, 2}})}}),
            entry + ", sizes=1 2): sizes: expected 4 numbers above 0 that add up to the 3 segments, got 1 2");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(message(model, {{"blocks.*", Pipeline("pp", {.sizes = {kMost, kMost, 4, 1}})}}),
              HasSubstr("that add up to the 3 segments, got 9223372036854775807 9223372036854775807 4 1"));
  EXPECT_EQ(message(model, {{"blocks.*", Pipeline("pp", {.costs = {1}})}}),
            entry + ", costs=1): costs: expected 5 numbers, one for each segment of the model, got 1");
  EXPECT_THAT(message(model, {{"blocks.*", Pipeline("pp", {.costs = {1, 2}, .sizes = {3}})}}),
              HasSubstr("costs and sizes: expected one of them, got Pipeline(pp, costs=1 2, sizes=3)"));
  EXPECT_EQ(message(model, {{"blocks.*", Pipeline("pp", {.order = StageOrder::kV})}}),
            entry + ", order=v): stages that lie there and back: expected 2 chunks, got 1");
  EXPECT_THAT(message(model, {{"blocks.*.mlp", Pipeline("pp")}}),
              HasSubstr("no segment of the model runs one of the modules that this names: 'blocks.0.mlp'"));
  EXPECT_THAT(message(model, {{"blocks.*", Pipeline("dp")}, {"blocks.*", Pipeline("pp")}}),
              HasSubstr("a plan cuts a model once; there is an entry \"blocks.*\": Pipeline(dp) already"));
  Plain plain;
  EXPECT_THAT(message(plain, {{"a", Pipeline("pp")}}),
              HasSubstr("the model, a Plain, is no SegmentedModule"));
}

// Its second segment names what it is given, too.
class Naming : public SegmentedModule {
 public:
  Naming(std::vector<Module*> modules, std::vector<Parameter*> parameters)
      : modules_(std::move(modules)), parameters_(std::move(parameters)) {}
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(outputs[0], targets);
  }

 protected:
  std::vector<Segment> MakeSegments() override {
    modules_.push_back(&second_);
    return {
        {.modules = {&first_},
         .cost = 1,
         .run = [&](const DTensors& x) -> DTensors { return {first_(x[0])}; }},
        {.modules = modules_,
         .parameters = parameters_,
         .cost = 1,
         .run = [&](const DTensors& x) -> DTensors { return {second_(x[0])}; }},
    };
  }

 private:
  std::vector<Module*> modules_;
  std::vector<Parameter*> parameters_;
  Linear first_{this, "layers.0", 4, 4}, second_{this, "layers.1", 4, 4};
};

TEST(StagedModelTest, WhatSegmentsNameIsTheModelsOwn) {
  const auto message = [](std::vector<Module*> modules, std::vector<Parameter*> parameters) {
    Naming model(std::move(modules), std::move(parameters));
    return InvalidArgumentMessage([&] {
      ResolvePlan(model, DeviceMesh::Parse("pp=2"), {{"layers.*", Pipeline("pp")}});
    });
  };
  Plain other;
  EXPECT_EQ(message({}, {}), "no error");
  EXPECT_THAT(message({&other.a}, {}),
              HasSubstr("segment 1 names module 'a' of another model: expected one of its own"));
  EXPECT_THAT(message({}, {&other.a.weight}),
              HasSubstr("segment 1 names parameter 'a.weight' of another model: expected one of its own"));
}

TEST(StagedModelTest, OtherStagesParametersTakeNoMemory) {
  RunRanks(4, [](World& world) {
    Gpt model(Config());
    const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=2");
    const auto context = Parallelize(model, world, mesh, PipelinedPlan(), {.dtype = DType::kF64});
    const bool is_first = context->coordinate()[0] == 0;
    int64_t bytes = 0;
    for (const Parameter* parameter : model.AllParameters())
      bytes += parameter->at_rest().ToLocal().num_bytes();
    int64_t all = 0;
    for (const Parameter* parameter : model.RegisteredParameters()) {
      all += parameter->spec().shape.num_elements() * 8;
    }
    EXPECT_GT(bytes, all / 4);
    EXPECT_LT(bytes, all * 3 / 4);
    EXPECT_EQ(context->allocator()->by_kind()[MemoryKind::kParam].live, bytes);
    EXPECT_EQ(model.wpe.is_here(), is_first);
    EXPECT_EQ(model.ln_f.weight.is_here(), !is_first);
    const Parameter& other = is_first ? model.ln_f.weight : model.wpe;
    EXPECT_EQ(MessageOf([&] { other.at_rest(); }),
              "parameter '" + other.path() +
                  "' is not on this rank: it belongs to another stage or part of the "
                  "model");
  });
}

Tensor Tokens() {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 4 * 8; ++i) tokens.push_back(i * 7 % 40);
  return Tensor::FromValues<int32_t>({4, 8}, tokens);
}

// A file that knows nothing of stages: all of the model and of the optimizer's state, what two stages have once.
TEST(StagedModelTest, ACheckpointHasAllStages) {
  const std::string path = testing::TempDir() + "/staged.safetensors";
  const std::string whole_path = testing::TempDir() + "/whole.safetensors";
  const auto save = [](Gpt& model, const std::string& to, const ModelStages* stages) {
    const Sgd optimizer(model.AllParameters(), {.momentum = 0.9});
    SaveTensors(to, CheckpointTensors(model, optimizer), {{"key", "value"}}, stages);
  };
  RunRanks(4, [&](World& world) {
    Gpt model(Config(/*tied_head=*/true));
    Parallelize(model, world, DeviceMesh::Parse("pp=2, dp=2"),
                {{"blocks.*", Pipeline("pp")}, {"", FullyShard("dp")}}, {.dtype = DType::kF64});
    SaveWeights(path, model);  // knows its stages
    EXPECT_EQ(SafetensorsReader(path).entries().size(), model.RegisteredParameters().size());
    save(model, path, &*model.stages());
  });
  RunRanks(1, [&](World& world) {
    Gpt model(Config(/*tied_head=*/true));
    Materialize(model, Bind(world, DeviceMesh()), {.dtype = DType::kF64});
    save(model, whole_path, nullptr);
  });
  SafetensorsReader staged(path), whole(whole_path);
  EXPECT_EQ(staged.metadata(), whole.metadata());
  ASSERT_EQ(staged.entries().size(), whole.entries().size());
  for (const SafetensorsEntry& entry : whole.entries()) {
    const TensorType* const found = staged.Find(entry.name);
    ASSERT_NE(found, nullptr) << entry.name;
    EXPECT_EQ(*found, entry.type) << entry.name;
    const auto read = [&](SafetensorsReader& reader) {
      return reader.Read(entry.name, WholeBox(entry.type.shape), MakeCpuAllocator()).ToVector<double>();
    };
    if (entry.type.dtype == DType::kF64) {
      EXPECT_EQ(read(staged), read(whole)) << entry.name;
    }
  }
  std::remove(path.c_str());
  std::remove(whole_path.c_str());
}

// Of a stage that is not trained an optimizer has no state: what is to be saved is said by all stages together.
TEST(StagedModelTest, ACheckpointOfWhatOneStageAloneHas) {
  const std::string path = testing::TempDir() + "/one_stage.safetensors";
  RunRanks(2, [&](World& world) {
    Gpt model(Config());
    const auto context = Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"blocks.*", Pipeline("pp")}});
    const bool is_last = context->coordinate()[0] == 1;
    if (!is_last) model.set_trainable(false);
    const Sgd optimizer(model.TrainableParameters(), {.momentum = 0.9});
    EXPECT_EQ(optimizer.State().empty(), !is_last);
    SaveTensors(path, optimizer.State(), {}, &*model.stages());
    EXPECT_EQ(MessageOf([&] { SaveTensors(path, {}, {}, &*model.stages()); }),
              "checkpoint '" + path + "': nothing to save");
    if (!is_last) return;
    const SafetensorsReader reader(path);
    EXPECT_EQ(reader.entries().size(), optimizer.State().size());
    for (const auto& [name, tensor] : optimizer.State()) EXPECT_NE(reader.Find(name), nullptr) << name;
  });
  std::remove(path.c_str());
}

// What a group says of parameters that other stages have is no mistake here; of none at all it is.
TEST(StagedModelTest, GroupsOfParametersMayMeanOtherStages) {
  RunRanks(2, [](World& world) {
    Gpt model(Config());
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"blocks.*", Pipeline("pp")}});
    const auto make = [&](const std::string& path) {
      return MessageOf([&] { Sgd(model.AllParameters(), {.groups = {{.path = path, .lr_scale = 2}}}); });
    };
    EXPECT_EQ(make("wpe"), "no error");   // of the first
    EXPECT_EQ(make("ln_f"), "no error");  // of the last
    EXPECT_EQ(make("blocks.0"), "no error");
    EXPECT_THAT(make("ln_g"), HasSubstr("parameter group 'ln_g' means no parameter"));
  });
}

TEST(StagedModelTest, AnExecutorRunsIt) {
  RunRanks(2, [](World& world) {
    Gpt model(Config());
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"blocks.*", Pipeline("pp")}});
    const DTensor tokens = DTensor::Distribute(model.context(), Tokens(), Layout(2, 1));
    EXPECT_EQ(MessageOf([&] { model(tokens); }),
              "module '' is cut into 2 stages: a PipelineExecutor runs it");
  });
}

// What a step is: the loss, the norm of all gradients, and each gradient.
struct Outcome {
  double loss = 0;
  double norm_squared = 0;
  std::map<std::string, std::vector<double>> gradients;
};

void TakeGradients(Gpt& model, Outcome* outcome) {
  for (const Parameter* parameter : model.AllParameters()) {
    outcome->gradients[parameter->path()] = parameter->grad().FullTensor().ToVector<double>();
  }
  outcome->norm_squared = ComputeGlobalNorm(model.AllParameters(), 1.0).norm_squared.Item();
}

Outcome OneDevice(const GptConfig& config) {
  Outcome outcome;
  RunRanks(1, [&](World& world) {
    Gpt model(config);
    const auto context = Bind(world, DeviceMesh());
    Materialize(model, context, {.dtype = DType::kF64});
    const DTensor tokens = DTensor::Distribute(context, Tokens(), Layout(2, 0));
    const DTensor loss = model.Loss(tokens, tokens).Mean();
    Backward(loss);
    outcome.loss = loss.Item();
    TakeGradients(model, &outcome);
  });
  return outcome;
}

// Two stages of two ranks each, by hand: forward, then backward, with messages in between. By stage.
std::vector<Outcome> TwoStages(const GptConfig& config) {
  std::vector<Outcome> outcomes(2);
  RunRanks(4, [&](World& world) {
    Gpt model(config);
    const DeviceMesh mesh = DeviceMesh::Parse("pp=2, dp=2");
    const auto root = Parallelize(model, world, mesh, PipelinedPlan(), {.dtype = DType::kF64});
    const IntrusivePtr<MeshContext>& part = model.context();
    const std::vector<int> firsts = ResolvePlan(model, mesh, PipelinedPlan()).pipeline->first_segments;
    const auto stage = static_cast<int>(root->coordinate()[0]);
    const bool is_first = stage == 0;
    Communicator& peers = root->Group({0});
    const Layout rows = Layout(3, 2).WithShard(1, 0);
    const Shape shape = {4, 8, config.dim};
    const Tensor message = Tensor::Empty(world.allocator(), DType::kF64, {2, 8, config.dim});
    const DTensor tokens = DTensor::Distribute(part, Tokens(), Layout(2, 2).WithShard(1, 0));
    Outcome outcome;
    {
      const ModuleCall call(model);
      if (is_first) {
        const DTensor out = model.RunSegments(firsts[0], firsts[1], {call.Input(tokens)})[0];
        EXPECT_EQ(out.layout(), rows);
        peers.Send(out.ToLocal(), 1).Wait();
        peers.Recv(message, 1).Wait();
        Backward(out, DTensor::FromLocal(part, message, rows, shape));
      } else {
        peers.Recv(message, 0).Wait();
        const DTensor in = DTensor::FromLocal(part, message, rows, shape).RequiresGrad();
        const DTensors out = model.RunSegments(firsts[1], firsts[2], {in});
        const DTensor loss = model.LossOf({call.Output(out[0])}, tokens).Mean();
        Backward(loss);
        outcome.loss = loss.Item();
        peers.Send(CloneTensor(in.grad().ToLocal(), world.allocator()), 0).Wait();
      }
    }
    model.stages()->data->ReduceGradients(stage);
    if (config.tied_head) {
      EXPECT_FALSE(model.wte.weight.grad().defined());
    }
    model.stages()->data->FinishGradients();
    TakeGradients(model, &outcome);
    if (root->coordinate()[1] == 0) outcomes[stage] = std::move(outcome);
  });
  return outcomes;
}

double MaxDifference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// Dropout's masks, too: what a stage draws is numbered as on one device.
TEST(StagedModelTest, StagesInTurnComputeWhatOneDeviceDoes) {
  const Outcome expected = OneDevice(Config());
  const std::vector<Outcome> stages = TwoStages(Config());
  EXPECT_NEAR(stages[1].loss, expected.loss, 1e-12);
  std::map<std::string, std::vector<double>> gradients = stages[0].gradients;
  gradients.insert(stages[1].gradients.begin(), stages[1].gradients.end());
  EXPECT_EQ(gradients.size(), stages[0].gradients.size() + stages[1].gradients.size());
  ASSERT_EQ(gradients.size(), expected.gradients.size());
  for (const auto& [path, gradient] : expected.gradients) {
    EXPECT_LT(MaxDifference(gradients.at(path), gradient), 1e-13) << path;
  }
  for (const Outcome& stage : stages) EXPECT_NEAR(stage.norm_squared / expected.norm_squared, 1, 1e-12);
}

// Behind FinishGradients; before it there is a term of it, which nobody sees.
TEST(StagedModelTest, OfATiedTableBothStagesHaveTheWholeGradient) {
  const Outcome expected = OneDevice(Config(/*tied_head=*/true));
  for (const Outcome& stage : TwoStages(Config(/*tied_head=*/true))) {
    EXPECT_LT(MaxDifference(stage.gradients.at("wte.weight"), expected.gradients.at("wte.weight")), 1e-13);
  }
}

}  // namespace
}  // namespace weft
