#include "dtensor/optim/parameter_groups.h"

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

GptConfig Config() { return {.vocabulary = 7, .context = 4, .layers = 2, .heads = 2, .dim = 4}; }

// The paths of the parameters whose learning rate `path` scales.
std::vector<std::string> MeantBy(const std::string& path) {
  Gpt model(Config());
  std::vector<std::string> meant;
  for (const ParameterGroup& group :
       ResolveGroups(model.AllParameters(), {{.path = path, .lr_scale = 2}}, "Test")) {
    if (group.lr_scale) meant.push_back(group.path);
  }
  return meant;
}

TEST(ParameterGroupsTest, PathsAreThoseOfPlans) {
  using Paths = std::vector<std::string>;
  EXPECT_EQ(MeantBy("").size(), Gpt(Config()).AllParameters().size());
  EXPECT_EQ(MeantBy("wte"), Paths{"wte.weight"});
  EXPECT_EQ(MeantBy("blocks.1.mlp.up"), (Paths{"blocks.1.mlp.up.weight", "blocks.1.mlp.up.bias"}));
  EXPECT_EQ(MeantBy("blocks.*.attn.qkv.bias"), (Paths{"blocks.0.attn.qkv.bias", "blocks.1.attn.qkv.bias"}));
  EXPECT_EQ(MeantBy("**.up.weight"), (Paths{"blocks.0.mlp.up.weight", "blocks.1.mlp.up.weight"}));
  EXPECT_EQ(MeantBy("wpe"), Paths{"wpe"});
  EXPECT_EQ(MeantBy("blocks.1").size(), MeantBy("blocks").size() / 2);  // and not those of blocks.10
}

TEST(ParameterGroupsTest, TheLaterGroupWinsFieldByField) {
  Gpt model(Config());
  const std::vector<Parameter*> parameters = model.AllParameters();
  const std::vector<ParameterGroup> resolved =
      ResolveGroups(parameters,
                    {{.path = "", .lr_scale = 2, .weight_decay = 0.5},
                     {.path = "blocks.0.mlp.up", .lr_scale = 3, .beta1 = 0.5},
                     {.path = "**.up.bias", .beta1 = 0.25, .beta2 = 0.75},
                     {.path = "blocks", .weight_decay = 0}},
                    "Test");
  for (const ParameterGroup& group : resolved) {
    ParameterGroup expected = {.path = group.path, .lr_scale = 2, .weight_decay = 0.5};
    if (group.path.starts_with("blocks.")) expected.weight_decay = 0;
    if (group.path.starts_with("blocks.0.mlp.up.")) expected.lr_scale = 3, expected.beta1 = 0.5;
    if (group.path.ends_with(".up.bias")) expected.beta1 = 0.25, expected.beta2 = 0.75;
    EXPECT_EQ(group, expected) << group.path;
  }
}

// An optimizer need not have all parameters of its model. On one rank that is no mistake either; what no parameter has is.
TEST(ParameterGroupsTest, AGroupMayMeanFrozenParametersAlone) {
  Gpt model(Config());
  model.wte.set_trainable(false);
  const auto resolve = [&](const std::string& path) {
    return ResolveGroups(model.TrainableParameters(), {{.path = path, .lr_scale = 2}}, "AdamW");
  };
  for (const ParameterGroup& group : resolve("wte")) EXPECT_EQ(group.lr_scale, std::nullopt) << group.path;
  EXPECT_EQ(resolve("wte").size(), model.AllParameters().size() - 1);
  EXPECT_EQ(InvalidArgumentMessage([&] { resolve("wt"); }),
            "AdamW: parameter group 'wt' means no parameter; did you mean 'wte'?");
}

// Of a stage that has ln_f and head alone, "*.*" names blocks of other stages, and not ln_f.weight.
TEST(ParameterGroupsTest, WhatAGroupMeansGoesByTheModelAndNotByTheOptimizersParameters) {
  Gpt model(Config());
  const std::vector<Parameter*> all = model.AllParameters();
  for (const char* path : {"", "*", "**", "*.*", "*.*.*", "wpe", "wte.weight", "blocks.*", "**.weight"}) {
    const std::vector<ParameterGroup> groups = {{.path = path, .lr_scale = 2}};
    const std::vector<ParameterGroup> whole = ResolveGroups(all, groups, "Test");
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(ResolveGroups({all[i]}, groups, "Test"), std::vector<ParameterGroup>{whole[i]}) << path;
    }
  }
  EXPECT_EQ(ResolveGroups({&model.wpe}, {{.path = "*", .lr_scale = 0}}, "Test")[0].lr_scale, std::nullopt);
}

TEST(ParameterGroupsTest, Misuse) {
  Gpt model(Config());
  const auto message = [&](const ParameterGroup& group) {
    return InvalidArgumentMessage([&] { ResolveGroups(model.AllParameters(), {group}, "AdamW"); });
  };
  EXPECT_EQ(message({.path = "wt"}), "AdamW: parameter group 'wt' means no parameter; did you mean 'wte'?");
  EXPECT_EQ(message({.path = "wte", .lr_scale = -1}),
            "AdamW: parameter group 'wte' has lr_scale -1: expected at least 0");
  EXPECT_EQ(message({.path = "", .weight_decay = std::numeric_limits<double>::infinity()}),
            "AdamW: parameter group '' has weight_decay inf: expected at least 0");
  EXPECT_EQ(message({.path = "", .beta1 = 1}),
            "AdamW: parameter group '' has beta1 1: expected at least 0 and below 1");
  EXPECT_EQ(message({.path = "", .beta2 = -0.5}),
            "AdamW: parameter group '' has beta2 -0.5: expected at least 0 and below 1");
  EXPECT_EQ(message({.path = "wte", .matrix = "iI"}),
            "AdamW: parameter group 'wte' has matrix 'iI': expected a letter per dim of i (input), o "
            "(output) and b "
            "(batch), with an i and an o");
  EXPECT_EQ(message({.path = "wte", .matrix = "bi"}),
            "AdamW: parameter group 'wte' has matrix 'bi': expected a letter per dim of i (input), o "
            "(output) and b "
            "(batch), with an i and an o");
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Gpt model(Config());
    Materialize(model, context);
    EXPECT_EQ(
        InvalidArgumentMessage(
            [&] { AdamW(model.AllParameters(), {.groups = {{.path = "wte", .matrix = "io"}}}); }),
        "AdamW: parameter group 'wte' sets a matrix, which is Muon's: expected lr_scale or weight_decay");
    EXPECT_EQ(InvalidArgumentMessage(
                  [&] { Sgd(model.AllParameters(), {.groups = {{.path = "wte", .beta2 = 0.5}}}); }),
              "Sgd: parameter group 'wte' sets a beta, which is AdamW's: expected lr_scale or weight_decay");
  });
}

class Model : public Module {
 public:
  Parameter a{this, "a", {.shape = {5, 3}, .initializer = Initializer::Normal(0, 1)}};
  Parameter b{this, "b", {.shape = {7}, .initializer = Initializer::Normal(0, 1)}};
  Parameter c{this, "c", {.shape = {4}, .initializer = Initializer::Normal(0, 1), .decays = false}};
};

// Five steps of the optimizers that `make` makes, of learning rates 0.1, 0.2, ...; a, b and c afterwards.
using MakeOptimizers = std::function<std::vector<std::unique_ptr<Optimizer>>(Model&)>;
std::vector<std::vector<double>> TrainedBy(const IntrusivePtr<MeshContext>& context,
                                           const MakeOptimizers& make, std::vector<double> scales) {
  Model model;
  Materialize(model, context, {.dtype = DType::kF64});
  const std::vector<std::unique_ptr<Optimizer>> optimizers = make(model);
  for (int step = 1; step <= 5; ++step) {
    for (Parameter* parameter : model.AllParameters()) {
      const Tensor gradient = RandomF64(parameter->spec().shape, static_cast<uint64_t>(step));
      parameter->SetGrad(DTensor::Distribute(context, gradient, parameter->at_rest().layout()));
    }
    for (size_t i = 0; i < optimizers.size(); ++i) optimizers[i]->Step(0.1 * step * scales[i]);
  }
  std::vector<std::vector<double>> values;
  for (const Parameter* parameter : model.AllParameters()) {
    values.push_back(parameter->at_rest().ToLocal().ToVector<double>());
  }
  return values;
}

// One optimizer with groups is several of which each has a group's parameters and its options: the same bits.
TEST(ParameterGroupsTest, AGroupIsAnOptimizerOfItsOwn) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    const auto adamw_of_groups = [](Model& model) {
      std::vector<std::unique_ptr<Optimizer>> optimizers;
      optimizers.push_back(std::make_unique<AdamW>(
          model.AllParameters(),
          AdamWOptions{.weight_decay = 0.3,
                       .groups = {{.path = "b", .lr_scale = 0.5, .beta1 = 0.7, .beta2 = 0.8},
                                  {.path = "c", .weight_decay = 0.9}}}));
      return optimizers;
    };
    const auto adamw_apart = [](Model& model) {
      std::vector<std::unique_ptr<Optimizer>> optimizers;
      const auto add = [&](Parameter& parameter, const AdamWOptions& options) {
        optimizers.push_back(std::make_unique<AdamW>(std::vector<Parameter*>{&parameter}, options));
      };
      add(model.a, {.weight_decay = 0.3});
      add(model.b, {.beta1 = 0.7, .beta2 = 0.8, .weight_decay = 0.3});
      add(model.c, {.weight_decay = 0});  // it does not decay, whatever its group says
      return optimizers;
    };
    EXPECT_EQ(TrainedBy(context, adamw_of_groups, {1}), TrainedBy(context, adamw_apart, {1, 0.5, 1}));
    for (const double momentum : {0.0, 0.9}) {
      const auto sgd_of_groups = [&](Model& model) {
        std::vector<std::unique_ptr<Optimizer>> optimizers;
        optimizers.push_back(std::make_unique<Sgd>(
            model.AllParameters(),
            SgdOptions{.momentum = momentum,
                       .weight_decay = 0.3,
                       .groups = {{.path = "a", .lr_scale = 0}, {.path = "b", .weight_decay = 0.1}}}));
        return optimizers;
      };
      const auto sgd_apart = [&](Model& model) {
        std::vector<std::unique_ptr<Optimizer>> optimizers;
        const auto add = [&](Parameter& parameter, const SgdOptions& options) {
          optimizers.push_back(std::make_unique<Sgd>(std::vector<Parameter*>{&parameter}, options));
        };
        add(model.b, {.momentum = momentum, .weight_decay = 0.1});
        add(model.c, {.momentum = momentum, .weight_decay = 0.3});
        return optimizers;
      };
      EXPECT_EQ(TrainedBy(context, sgd_of_groups, {1}), TrainedBy(context, sgd_apart, {1, 1}));
    }
  });
}

}  // namespace
}  // namespace weft
