// Parameters that are tied by declaration: one value under every plan, as in the model that is written with one.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/checkpoint/checkpoint.h"
#include "dtensor/functions.h"
#include "dtensor/nn/embedding.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/nn/linear.h"
#include "dtensor/nn/norm.h"
#include "dtensor/nn/segmented_module.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/weight_average.h"
#include "examples/gpt/gpt_plan.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "runtime/launch/run_ranks.h"
#include "tests/message_of.h"
#include "tests/parallel/data_parallel/data_parallel_cases.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

using testing::HasSubstr;

GptConfig Config(bool is_written) {
  return {.vocabulary = 29,
          .context = 16,
          .layers = 2,
          .heads = 2,
          .dim = 12,
          .dropout = 0.1,
          .tied_head = is_written};
}

Parameter& HeadWeight(Gpt& model) { return dynamic_cast<Linear&>(*model.head).weight; }

// A GPT whose head is a layer of its own, tied to the embedding.
std::unique_ptr<Gpt> Declared() {
  auto model = std::make_unique<Gpt>(Config(/*is_written=*/false));
  HeadWeight(*model).TieTo(model->wte.weight, /*transposed=*/true);
  return model;
}

TrainingRun RunOf(const std::string& plan, const std::string& mesh, bool is_written) {
  TrainingRun run;
  run.mesh = DeviceMesh::Parse(mesh);
  run.plan = plan == "tp" ? GptPlan(run.mesh, DataPlan::kDdp, /*sequence_parallel=*/true)
                          : DataPlanNamed(plan, run.mesh);
  run.vocabulary = 29;
  run.optimizer = TrainingRun::Optimizer::kAdamW;
  run.microbatches = 2;
  run.steps = 3;
  run.gradient_steps = {1, 3};
  if (is_written) {
    run.make_model = MakeGpt(Config(true));
  } else {
    run.make_model = [] { return Declared(); };
  }
  return run;
}

TEST(TiedParametersTest, TrainsAsTheModelThatIsWrittenWithOne) {
  const TrainingResult expected = Train(RunOf("none", "", /*is_written=*/true));
  for (const auto& [plan, mesh] : std::vector<std::pair<std::string, std::string>>{{"none", ""},
                                                                                   {"ddp", "dp=2"},
                                                                                   {"zero1", "dp=3"},
                                                                                   {"fsdp", "dp=2"},
                                                                                   {"fsdp", "dp=2,tp=2"},
                                                                                   {"tp", "dp=2,tp=2"}}) {
    const TrainingResult actual = Train(RunOf(plan, mesh, /*is_written=*/false));
    EXPECT_EQ(Differences(expected, actual, kF64Tolerance), std::vector<std::string>())
        << plan << " on " << mesh;
  }
}

// A head with a norm of its own, whose weight is another name of the table's.
class NormedHead : public Linear {
 public:
  NormedHead(Module* parent, std::string name) : Linear(parent, std::move(name), 4, 8, {.bias = false}) {}
  LayerNorm norm{this, "norm", 4};

 protected:
  DTensor Forward(const DTensor& x) override { return Linear::Forward(norm(x)); }
};

class NormedModel : public Module {
 public:
  NormedModel() { head.weight.TieTo(table.weight, /*transposed=*/true); }
  Embedding table{this, "table", 8, 4};
  NormedHead head{this, "head"};

 protected:
  DTensor Forward(const DTensor& tokens) override { return head(table(tokens)); }
};

TEST(TiedParametersTest, AHeadWithAChildMayHaveABorder) {
  RunRanks(2, [](World& world) {
    NormedModel model;
    Parallelize(model, world, DeviceMesh::Parse("tp=2"),
                {{"table", VocabParallel("tp")}, {"head", ColumnParallel("tp")}});
    EXPECT_TRUE(model.table.weight.at_rest().layout().IsShard(0));
  });
}

TEST(TiedParametersTest, IsOneParameter) {
  RunRanks(2, [](World& world) {
    const auto model = Declared();
    Gpt written(Config(/*is_written=*/true));
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    const Plan plan = DataPlanNamed("fsdp", mesh);
    const auto context = Bind(world, mesh);
    Parallelize(*model, context, plan);
    Parallelize(written, context, plan);
    const auto names = [](Gpt& of) {
      std::vector<std::string> all;
      const AdamW optimizer(of.AllParameters(), AdamWOptions());
      for (const auto& [name, tensor] : CheckpointTensors(of, optimizer)) all.push_back(name);
      return all;
    };
    EXPECT_EQ(names(*model), names(written));
    EXPECT_EQ(HeadWeight(*model).tied_to(), &model->wte.weight);
    EXPECT_EQ(HeadWeight(*model).Value().shape(), Shape({12, 29}));
    EXPECT_EQ(HeadWeight(*model).at_rest().impl(), model->wte.weight.at_rest().impl());
  });
}

// Training on them is in pipeline/executor_test.
TEST(TiedParametersTest, EveryStageThatReadsEitherHasIt) {
  const auto model = Declared();
  const ResolvedPlan resolved =
      ResolvePlan(*model, DeviceMesh::Parse("pp=2"), {{"blocks.*", Pipeline("pp")}});
  for (const ResolvedParameter& parameter : resolved.parameters) {
    EXPECT_NE(parameter.path, "head.weight");
    if (parameter.path != "wte.weight") continue;
    EXPECT_EQ(parameter.stages, (std::vector<int>{0, 1}));
  }
}

// Two products, and a third by the first one's weight: the second segment names the slot that is tied.
class TiedChain : public SegmentedModule {
 public:
  TiedChain() { last.TieTo(first.weight); }
  LossSum LossOf(const DTensors& outputs, const DTensor& targets) override {
    return MseLoss(outputs[0], targets);
  }

  Linear first{this, "layers.0", 4, 4}, second{this, "layers.1", 4, 4};
  Parameter last{this, "last", {.shape = {4, 4}}};

 protected:
  std::vector<Segment> MakeSegments() override {
    return {
        {.modules = {&first}, .cost = 1, .run = [&](const DTensors& x) -> DTensors { return {first(x[0])}; }},
        {.modules = {&second},
         .parameters = {&last},
         .cost = 1,
         .run = [&](const DTensors& x) -> DTensors { return {MatMul(second(x[0]), last.Value())}; }},
    };
  }
};

TEST(TiedParametersTest, ASegmentNamesTheSlot) {
  TiedChain model;
  const ResolvedPlan resolved = ResolvePlan(model, DeviceMesh::Parse("pp=2"), {{"layers.*", Pipeline("pp")}});
  std::map<std::string, std::vector<int>> stages;
  for (const ResolvedParameter& parameter : resolved.parameters) stages[parameter.path] = parameter.stages;
  const std::map<std::string, std::vector<int>> expected = {
      {"layers.0.weight", {0, 1}},
      {"layers.0.bias", {0}},
      {"layers.1.weight", {1}},
      {"layers.1.bias", {1}},
  };
  EXPECT_EQ(stages, expected);
  EXPECT_THAT(model.ParametersOfSegments(1, 2),
              testing::UnorderedElementsAre(&model.second.weight, &*model.second.bias, &model.first.weight));
}

// The one parameter that both names mean: frozen by either, or by the module of either, before it has a value or after, and
// trained again.
TEST(TiedParametersTest, IsFrozenByEitherName) {
  for (const auto& [is_late, by_module] :
       std::vector<std::pair<bool, bool>>{{false, false}, {true, false}, {false, true}, {true, true}}) {
    RunRanks(2, [&, is_late = is_late, by_module = by_module](World& world) {
      const auto model = Declared();
      Parameter& head = HeadWeight(*model);
      Parameter& table = model->wte.weight;
      const auto set_trainable = [&](bool trains) {
        by_module ? model->head->set_trainable(trains) : head.set_trainable(trains);
      };
      const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
      if (!is_late) set_trainable(false);
      const auto context = Parallelize(*model, world, mesh, DataPlanNamed("ddp", mesh), {});
      if (is_late) set_trainable(false);
      EXPECT_FALSE(table.trainable());
      EXPECT_FALSE(head.trainable());
      EXPECT_FALSE(table.at_rest().requires_grad());
      const std::vector<int32_t> values = {1, 2, 3, 4, 5, 6, 7, 8};
      const DTensor tokens = DTensor::Distribute(context, Tensor::FromValues<int32_t>({2, 4}, values),
                                                 Layout::Parse("[dp, -]", mesh));
      Backward(model->Loss(tokens, tokens).Mean());
      EXPECT_FALSE(table.grad().defined());
      EXPECT_FALSE(head.grad().defined());
      EXPECT_TRUE(model->wpe.grad().defined());
      set_trainable(true);
      EXPECT_TRUE(table.trainable());
      EXPECT_TRUE(head.trainable());
      Backward(model->Loss(tokens, tokens).Mean());
      EXPECT_TRUE(table.grad().defined());
    });
  }
}

// In the type of the one parameter, as it is given.
TEST(TiedParametersTest, TakesGradientsAndValuesByEitherName) {
  RunRanks(2, [](World& world) {
    const auto model = Declared();
    Parameter& head = HeadWeight(*model);
    Parameter& table = model->wte.weight;
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    Parallelize(*model, world, mesh, DataPlanNamed("fsdp", mesh), {});
    head.SetGrad(FullLike(table.at_rest().Detach(), 3));
    EXPECT_EQ(table.grad().FullTensor().ToVector<double>(), std::vector<double>(29 * 12, 3));
    head.Load(FullLike(table.at_rest().Detach(), 5));
    EXPECT_EQ(table.at_rest().FullTensor().ToVector<double>(), std::vector<double>(29 * 12, 5));
  });
}

std::vector<std::string> TextsOf(const std::vector<std::pair<std::string, DTensor>>& state) {
  std::vector<std::string> texts;
  for (const auto& [name, tensor] : state) texts.push_back(name + " " + tensor.ToString());
  return texts;
}

// By the tied name alone, by both, and by the parameter's: one state, which lies as the parameter's does, and one update.
TEST(TiedParametersTest, OptimizersAndAveragesTakeEitherName) {
  RunRanks(2, [](World& world) {
    std::vector<std::vector<double>> values;
    for (int which = 0; which < 3; ++which) {
      const auto model = Declared();
      Parameter& head = HeadWeight(*model);
      Parameter& table = model->wte.weight;
      const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
      Parallelize(*model, world, mesh, DataPlanNamed("fsdp", mesh), {});
      const std::vector<Parameter*> named[] = {{&table}, {&head}, {&head, &table}};
      AdamW adamw(named[which], {.groups = {{.path = "wte", .lr_scale = 0.5}}});
      EXPECT_EQ(adamw.parameters(), std::vector<Parameter*>{&table}) << which;
      const AdamW of_table({&table}, {});
      EXPECT_EQ(TextsOf(adamw.State()), TextsOf(of_table.State())) << which;
      table.SetGrad(FullLike(table.at_rest().Detach(), 1));
      adamw.Step(0.1);
      WeightAverage average(named[which], {});
      EXPECT_EQ(TextsOf(average.State()), TextsOf(WeightAverage({&table}, {}).State())) << which;
      average.Update();
      average.SwapWithModel();
      values.push_back(table.at_rest().FullTensor().ToVector<double>());
      EXPECT_EQ(values.back(), values.front()) << which;
    }
  });
}

// Once, by whatever names it is given, and on one of the stages that have it.
TEST(TiedParametersTest, TheGlobalNormTakesEitherName) {
  RunRanks(2, [](World& world) {
    const auto model = Declared();
    Parameter& head = HeadWeight(*model);
    Parameter& table = model->wte.weight;
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    Parallelize(*model, world, mesh, DataPlanNamed("fsdp", mesh), {});
    table.SetGrad(FullLike(table.at_rest().Detach(), 1));
    const std::vector<Parameter*> named[] = {{&table}, {&head}, {&head, &table}, {&table, &head}};
    for (const std::vector<Parameter*>& parameters : named) {
      EXPECT_EQ(ComputeGlobalNorm(parameters, 1).norm_squared.Item(), 29 * 12);
    }
  });
  RunRanks(2, [](World& world) {
    TiedChain model;
    Parallelize(model, world, DeviceMesh::Parse("pp=2"), {{"layers.*", Pipeline("pp")}}, {});
    std::vector<Parameter*> parameters = {&model.last};
    for (Parameter* parameter : model.AllParameters()) {
      parameter->SetGrad(FullLike(parameter->at_rest().Detach(), 1));
      parameters.push_back(parameter);
    }
    EXPECT_EQ(ComputeGlobalNorm(parameters, 1).norm_squared.Item(), 2 * (4 * 4 + 4));
  });
}

// A head is tied to a decoder's table, and that, then, to the encoder's: three names of one parameter.
TEST(TiedParametersTest, NamesOfASlotThatIsTiedLaterGoAlong) {
  class Translator : public Module {
   public:
    Embedding source{this, "source", 6, 4};
    Embedding target{this, "target", 6, 4};
    Linear head{this, "head", 4, 6, {.bias = false}};
  };
  Translator model;
  model.head.weight.TieTo(model.target.weight, /*transposed=*/true);
  model.target.weight.TieTo(model.source.weight);
  EXPECT_EQ(model.head.weight.tied_to(), &model.source.weight);
  EXPECT_EQ(model.target.weight.tied_to(), &model.source.weight);
  EXPECT_EQ(model.TiedParameters(), std::vector<Parameter*>{&model.source.weight});
  RunRanks(2, [](World& world) {
    // The same by a table [d, v], which turns the dims a second time.
    class Turned : public Module {
     public:
      Linear table{this, "table", 4, 6, {.bias = false}};
      Embedding target{this, "target", 6, 4};
      Linear head{this, "head", 4, 6, {.bias = false}};
    };
    Turned model;
    model.head.weight.TieTo(model.target.weight, /*transposed=*/true);
    model.target.weight.TieTo(model.table.weight, /*transposed=*/true);
    const auto context = Bind(world, DeviceMesh::Parse("dp=2"));
    Materialize(model, context, {.dtype = DType::kF64});
    int num_ready = 0;
    const HookHandle hook = model.head.weight.AddGradientReady([&](Parameter&) { ++num_ready; });
    const std::vector<double> table = model.table.weight.at_rest().FullTensor().ToVector<double>();
    EXPECT_EQ(model.head.weight.Value().FullTensor().ToVector<double>(), table);
    const std::vector<double> rows = model.target.weight.Value().FullTensor().ToVector<double>();
    for (int i = 0; i < 6; ++i) {
      for (int j = 0; j < 4; ++j) EXPECT_EQ(rows[i * 4 + j], table[j * 6 + i]);
    }
    // x W and the target's row 1, summed: x in all columns, and 1 in column 1.
    const DTensor x = Full(context, DType::kF64, {1, 4}, 3);
    const DTensor token = DTensor::Distribute(context, Tensor::FromValues<int32_t>({1}, {1}), Layout(1, 1));
    Backward(Sum(model.head(x)) + Sum(model.target(token)));
    EXPECT_EQ(num_ready, 1);
    const std::vector<double> gradient = model.table.weight.grad().FullTensor().ToVector<double>();
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 6; ++i) EXPECT_EQ(gradient[j * 6 + i], i == 1 ? 4 : 3);
    }
  });
}

TEST(TiedParametersTest, MistakesAreNamed) {
  Gpt model(Config(false)), other(Config(false));
  Parameter& head = HeadWeight(model);
  EXPECT_EQ(MessageOf([&] { head.TieTo(model.wte.weight); }),
            "parameter 'head.weight' tied to 'wte.weight': shapes [12, 29] and [29, 12] differ");
  EXPECT_THAT(MessageOf([&] { head.TieTo(head); }),
              HasSubstr("expected another parameter, neither of them tied"));
  EXPECT_THAT(MessageOf([&] { head.TieTo(other.wte.weight, true); }),
              HasSubstr("expected parameters of one model"));
  head.TieTo(model.wte.weight, true);
  EXPECT_THAT(MessageOf([&] { model.wte.weight.TieTo(head, true); }), HasSubstr("neither of them tied"));
  EXPECT_THAT(MessageOf([&] {
                ResolvePlan(model, DeviceMesh::Parse("tp=2"), {{"head.weight", ColumnParallel("tp")}});
              }),
              HasSubstr("no module or parameter matches"));
  RunRanks(1, [](World& world) {
    Gpt late(Config(false));
    Parallelize(late, world, DeviceMesh(), {});
    EXPECT_THAT(MessageOf([&] { HeadWeight(late).TieTo(late.wte.weight, true); }),
                HasSubstr("the model has values already"));
  });
}

}  // namespace
}  // namespace weft
