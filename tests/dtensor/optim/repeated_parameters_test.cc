// Lists that name a parameter several times, as the parameters of a model and then those of its head: it counts once.

#include <string>
#include <utility>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/sgd.h"
#include "dtensor/optim/weight_average.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using testing::ElementsAre;

class Model : public Module {
 public:
  Parameter a{this, "a", {.shape = {3}, .initializer = Initializer::Constant(2)}};
  Parameter b{this, "b", {.shape = {2}, .initializer = Initializer::Constant(4)}};

  // Gradients are ones.
  explicit Model(const IntrusivePtr<MeshContext>& context) {
    Materialize(*this, context, {.dtype = DType::kF64});
    for (Parameter* parameter : AllParameters()) {
      parameter->SetGrad(Full(context, DType::kF64, parameter->spec().shape, 1));
    }
  }

  std::vector<Parameter*> Repeated() { return {&a, &b, &a, &b}; }
  std::vector<double> Values() const {
    return {a.at_rest().FullTensor().ToVector<double>()[0], b.at_rest().FullTensor().ToVector<double>()[0]};
  }
};

TEST(RepeatedParametersTest, TheNormCountsEachElementOnce) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model(context);
    EXPECT_EQ(ComputeGlobalNorm(model.Repeated(), /*max_norm=*/0).norm_squared.Item(), 5);
  });
}

TEST(RepeatedParametersTest, AnOptimizerUpdatesEachOnceAndHasOneState) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model(context);
    Sgd sgd(model.Repeated(), {.momentum = 0.5});
    EXPECT_THAT(sgd.parameters(), ElementsAre(&model.a, &model.b));
    sgd.Step(0.25);
    EXPECT_THAT(model.Values(), ElementsAre(1.75, 3.75));
    std::vector<std::string> names;
    for (const auto& [name, state] : sgd.State()) names.push_back(name);
    EXPECT_THAT(names, ElementsAre("a.momentum", "b.momentum", "updates"));
  });
}

TEST(RepeatedParametersTest, AnAverageTurnsTheModelBack) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model(context);
    Sgd sgd(model.AllParameters(), {});
    WeightAverage average(model.Repeated(), {.decay = 0.5});
    average.Update();
    sgd.Step(1);
    average.Update();
    average.SwapWithModel();
    EXPECT_THAT(model.Values(), ElementsAre(1.5, 3.5));
    average.SwapWithModel();
    EXPECT_THAT(model.Values(), ElementsAre(1, 3));
  });
}

}  // namespace
}  // namespace weft
