#include "dtensor/optim/clip.h"

#include <cmath>
#include <utility>

#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

class Model : public Module {
 public:
  Parameter a{this, "a", {.shape = {5, 3}}};
  Parameter b{this, "b", {.shape = {4}}};
  Parameter c{this, "c", {.shape = {3, 2}}};
  Parameter unused{this, "unused", {.shape = {7}}};

  // Gradients of the first three are seeded random numbers.
  void LayWithGradients(const IntrusivePtr<MeshContext>& context, const std::vector<const char*>& at_rest) {
    Bind(context);
    for (size_t i = 0; i < at_rest.size(); ++i) {
      Parameter& parameter = *parameters()[i];
      const Layout layout = Layout::Parse(at_rest[i], context->mesh());
      parameter.Materialize(context, DType::kF64, DType::kF64, {layout, layout});
      parameter.SetGrad(DTensor::Distribute(context, RandomF64(parameter.spec().shape, i), layout));
    }
    const Layout whole(1, context->mesh().num_axes());
    unused.Materialize(context, DType::kF64, DType::kF64, {whole, whole});
  }
};

double NaiveNormSquared() {
  double sum = 0;
  const Shape shapes[] = {{5, 3}, {4}, {3, 2}};
  for (size_t i = 0; i < 3; ++i) {
    for (double g : RandomF64(shapes[i], i).ToVector<double>()) sum += g * g;
  }
  return sum;
}

struct Setting {
  const char* mesh;
  std::vector<const char*> at_rest;
  const char* moved;
};

TEST(ClipTest, EveryElementCountsOnceOverAnyLayouts) {
  const Setting settings[] = {
      {"", {"[-, -]", "[-]", "[-, -]"}, ""},
      {"dp=2,tp=2", {"[-, -]", "[-]", "[-, -]"}, ""},  // replicated: known everywhere
      {"dp=2,tp=2", {"[dp, -]", "[-]", "[-, -]"}, "all_reduce dp norm"},
      {"dp=2,tp=2", {"[-, -]", "[tp]", "[-, -]"}, "all_reduce tp norm"},
      {"dp=2,tp=2", {"[tp.dp, -]", "[-]", "[-, tp]"}, "all_reduce dp.tp norm"},
      {"dp=2,tp=2", {"[-, -]", "[dp]", "[-, tp]"}, "all_reduce dp.tp norm"},
      {"dp=4", {"[-, dp]", "[dp]", "[dp, -]"}, "all_reduce dp norm"},
  };
  const double expected = NaiveNormSquared();
  for (const Setting& setting : settings) {
    OnMesh(setting.mesh, [&](const IntrusivePtr<MeshContext>& context) {
      Model model;
      model.LayWithGradients(context, setting.at_rest);
      for (double max_norm : {0.5, 100.0}) {
        context->world().ledger().Clear();
        const GlobalNorm norm = ComputeGlobalNorm(model.AllParameters(), max_norm);
        EXPECT_EQ(LedgerText(*context), setting.moved);
        EXPECT_EQ(norm.norm_squared.ndim(), 0);
        EXPECT_TRUE(norm.norm_squared.layout().IsFullyReplicated());
        EXPECT_TRUE(norm.scale.layout().IsFullyReplicated());
        EXPECT_NEAR(norm.norm_squared.Item(), expected, 1e-13);
        EXPECT_NEAR(norm.scale.Item(), std::min(1.0, max_norm / (std::sqrt(expected) + 1e-6)), 1e-13);
      }
      EXPECT_FALSE(ComputeGlobalNorm(model.AllParameters(), 0).scale.defined());
    });
  }
}

TEST(ClipTest, TheClippedStepHasTheMaximalNorm) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.LayWithGradients(context, {"[dp, -]", "[-]", "[-, dp]"});
    Sgd sgd(model.AllParameters(), {});
    sgd.Step(1, ComputeGlobalNorm(model.AllParameters(), 0.5).scale);
    double moved = 0;  // parameters start at zero
    for (const Parameter* parameter : model.AllParameters()) {
      for (double p : parameter->at_rest().FullTensor().ToVector<double>()) moved += p * p;
    }
    EXPECT_NEAR(std::sqrt(moved), 0.5, 1e-6);
  });
}

// As of two models that one optimizer trains.
TEST(ClipTest, GradientsOfSeveralDtypesHaveOneNorm) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    for (const auto& [first, second] :
         {std::pair(DType::kF32, DType::kF64), std::pair(DType::kF64, DType::kBF16),
          std::pair(DType::kBF16, DType::kF32)}) {
      Model model;
      model.Bind(context);
      const Layout split = Layout::Parse("[dp, -]", context->mesh()), whole(1, context->mesh().num_axes());
      model.a.Materialize(context, first, first, {split, split});
      model.b.Materialize(context, second, second, {whole, whole});
      model.a.SetGrad(Full(context, first, {5, 3}, 2, split));  // 60
      model.b.SetGrad(Full(context, second, {4}, 1));           // 4
      const std::vector<Parameter*> both = {&model.a, &model.b};
      const GlobalNorm norm = ComputeGlobalNorm(both, /*max_norm=*/4);
      EXPECT_EQ(norm.norm_squared.Item(), 64);
      EXPECT_NEAR(norm.scale.Item(), 0.5, 1e-6);
      const DTensor loss_scale = Full(context, DType::kF32, Shape(), 2);
      EXPECT_EQ(ComputeGlobalNorm(both, /*max_norm=*/0, loss_scale).norm_squared.Item(), 16);
      Sgd sgd(both, {});
      sgd.Step(1, norm.scale);
      EXPECT_NEAR(model.b.at_rest().FullTensor().ToVector<double>()[0], -0.5, 1e-6);
    }
  });
}

TEST(ClipTest, ANormThatIsNotFiniteMakesTheUpdateSkipItself) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.LayWithGradients(context, {"[dp, -]", "[dp]", "[-, -]"});
    // One element, on one rank.
    const Tensor bad = Tensor::FromValues<double>({4}, {0, 0, 0, INFINITY});
    model.b.SetGrad(DTensor::Distribute(context, bad, model.b.layouts().at_rest));
    const GlobalNorm norm = ComputeGlobalNorm(model.AllParameters(), 1);
    EXPECT_EQ(norm.norm_squared.Item(), INFINITY);
    EXPECT_TRUE(std::isnan(norm.scale.Item()));
    Sgd sgd(model.AllParameters(), {});
    sgd.Step(1, norm.scale);
    EXPECT_EQ(model.a.at_rest().FullTensor().ToVector<double>(), std::vector<double>(15, 0));
  });
}

TEST(ClipTest, Misuse) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    Materialize(model, context);
    EXPECT_EQ(ErrorOf([&] { ComputeGlobalNorm(model.AllParameters(), 1); }),
              "ComputeGlobalNorm: no parameter has a gradient");
    EXPECT_EQ(ErrorOf([&] { ComputeGlobalNorm({}, 1); }), "ComputeGlobalNorm: no parameter has a gradient");
    // Which would clip nothing.
    EXPECT_EQ(ErrorOf([&] { ComputeGlobalNorm(model.AllParameters(), -1); }),
              "ComputeGlobalNorm: expected a max_norm of at least 0, got -1");
    EXPECT_EQ(ErrorOf([&] { ComputeGlobalNorm(model.AllParameters(), NAN); }),
              "ComputeGlobalNorm: expected a max_norm of at least 0, got nan");
  });
}

// Of gradients that are too large by a scale, without a bound on the norm: an overflow is no factor that an update would take.
TEST(ClipTest, AnOverflowUnderALossScaleMakesNoFactor) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.LayWithGradients(context, {"[dp, -]", "[-]", "[-, -]"});
    const DTensor scale = Full(context, DType::kF64, Shape(), 8);
    EXPECT_EQ(ComputeGlobalNorm(model.AllParameters(), /*max_norm=*/0, scale).scale.Item(), 0.125);
    for (const double wrong : {HUGE_VAL, std::nan("")}) {
      model.b.SetGrad(Full(context, DType::kF64, {4}, wrong));
      EXPECT_FALSE(
          std::isfinite(ComputeGlobalNorm(model.AllParameters(), /*max_norm=*/0, scale).scale.Item()));
    }
  });
}

}  // namespace
}  // namespace weft
