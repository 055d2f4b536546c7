#include "dtensor/optim/optimizer.h"

#include <cmath>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/adafactor.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/adamw_8bit.h"
#include "dtensor/optim/clip.h"
#include "dtensor/optim/lamb.h"
#include "dtensor/optim/lion.h"
#include "dtensor/optim/muon.h"
#include "dtensor/optim/sgd.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsNan;

// A matrix and a vector, uneven over every axis, of which the matrix decays, and one that is never used.
class Model : public Module {
 public:
  Parameter matrix{this, "matrix", {.shape = {5, 3}, .initializer = Initializer::Normal(0, 1)}};
  Parameter vector{this, "vector", {.shape = {5}, .initializer = Initializer::Normal(0, 1), .decays = false}};
  Parameter unused{this, "unused", {.shape = {2}, .initializer = Initializer::Constant(1)}};

  void Lay(const IntrusivePtr<MeshContext>& context, const std::vector<const char*>& at_rest, DType dtype) {
    Bind(context);
    for (size_t i = 0; i < at_rest.size(); ++i) {
      const Layout layout = Layout::Parse(at_rest[i], context->mesh());
      parameters()[i]->Materialize(context, dtype, dtype, {layout, layout});
    }
  }
};

// One element's way through the updates, by the textbook.
struct NaiveElement {
  double p = 0;
  double m = 0;
  double v = 0;

  void Sgd(double g, double lr, double weight_decay, const SgdOptions& o) {
    g += weight_decay * p;
    m = o.momentum * m + g;
    p -= lr * (o.momentum != 0 ? m : g);
  }
  void AdamW(double g, double lr, int step, double weight_decay, const AdamWOptions& o) {
    p -= lr * weight_decay * p;
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const double m_hat = m / (1 - std::pow(o.beta1, step));
    const double v_hat = v / (1 - std::pow(o.beta2, step));
    p -= lr * m_hat / (std::sqrt(v_hat) + o.eps);
  }
};

Tensor GradientAt(const Parameter& parameter, int step) {
  return RandomF64(parameter.spec().shape, static_cast<uint64_t>(step) * 10 + (parameter.name() == "matrix"));
}

constexpr int kNumSteps = 5;
constexpr double kScale = 0.5;
double LearningRate(int step) { return 0.1 / step; }

// Steps `optimizer` by given gradients and compares with `update` on every element of the two used
// parameters.
using Update = std::function<void(NaiveElement&, double g, double lr, int step, bool decays)>;

void CheckAgainst(const IntrusivePtr<MeshContext>& context, Model& model, Optimizer& optimizer,
                  const Update& update) {
  std::vector<Parameter*> used = {&model.matrix, &model.vector};
  std::vector<std::vector<NaiveElement>> naive;
  for (const Parameter* parameter : used) {
    naive.emplace_back();
    for (double p : parameter->at_rest().FullTensor().ToVector<double>()) naive.back().push_back({.p = p});
  }
  const std::vector<double> unused = model.unused.at_rest().FullTensor().ToVector<double>();
  context->world().ledger().Clear();
  for (int step = 1; step <= kNumSteps; ++step) {
    for (size_t i = 0; i < used.size(); ++i) {
      const Tensor gradient = GradientAt(*used[i], step);
      used[i]->SetGrad(DTensor::Distribute(context, gradient, used[i]->layouts().at_rest));
      const std::vector<double> elements = gradient.ToVector<double>();
      for (size_t j = 0; j < elements.size(); ++j) {
        update(naive[i][j], kScale * elements[j], LearningRate(step), step, used[i]->spec().decays);
      }
    }
    optimizer.Step(LearningRate(step), Full(context, DType::kF64, {}, kScale));
  }
  EXPECT_EQ(LedgerText(*context), "");  // each rank updates its own pieces
  EXPECT_EQ(optimizer.updates().ToLocal().ToVector<int64_t>(), std::vector<int64_t>{kNumSteps});
  for (size_t i = 0; i < used.size(); ++i) {
    std::vector<double> expected;
    for (const NaiveElement& element : naive[i]) expected.push_back(element.p);
    EXPECT_TRUE(AllClose(used[i]->at_rest().FullTensor(),
                         Tensor::FromValues<double>(used[i]->spec().shape, expected), 1e-14))
        << used[i]->path() << " " << used[i]->at_rest().ToString();
  }
  EXPECT_EQ(model.unused.at_rest().FullTensor().ToVector<double>(), unused);
}

struct Setting {
  const char* mesh;
  std::vector<const char*> at_rest;
};

const Setting kSettings[] = {{"", {"[-, -]", "[-]", "[-]"}},
                             {"a=2", {"[a, -]", "[a]", "[a]"}},
                             {"a=4", {"[-, a]", "[-]", "[a]"}},
                             {"a=2,b=2", {"[b.a, -]", "[a]", "[a.b]"}},
                             {"a=2,b=2", {"[b, a]", "[a.b]", "[-]"}}};

TEST(OptimizerTest, SgdIsItsTextbook) {
  for (const SgdOptions& options :
       {SgdOptions{}, SgdOptions{.weight_decay = 0.1}, SgdOptions{.momentum = 0.9, .weight_decay = 0.1}}) {
    for (const Setting& setting : kSettings) {
      OnMesh(setting.mesh, [&](const IntrusivePtr<MeshContext>& context) {
        Model model;
        model.Lay(context, setting.at_rest, DType::kF64);
        Sgd sgd(model.AllParameters(), options);
        CheckAgainst(context, model, sgd, [&](NaiveElement& element, double g, double lr, int, bool decays) {
          element.Sgd(g, lr, decays ? options.weight_decay : 0, options);
        });
      });
    }
  }
}

TEST(OptimizerTest, AdamWIsItsTextbook) {
  for (const AdamWOptions& options :
       {AdamWOptions{}, AdamWOptions{.beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.3}}) {
    for (const Setting& setting : kSettings) {
      OnMesh(setting.mesh, [&](const IntrusivePtr<MeshContext>& context) {
        Model model;
        model.Lay(context, setting.at_rest, DType::kF64);
        AdamW adamw(model.AllParameters(), options);
        CheckAgainst(context, model, adamw,
                     [&](NaiveElement& element, double g, double lr, int step, bool decays) {
                       element.AdamW(g, lr, step, decays ? options.weight_decay : 0, options);
                     });
      });
    }
  }
}

// As those of groups are: a beta1 or beta2 of 1 corrects by 1 / 0 in the first update.
TEST(OptimizerTest, BetasAndEpsOfTheOptionsAreChecked) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.Lay(context, {"[-, -]", "[-]", "[-]"}, DType::kF32);
    const std::vector<Parameter*> all = model.AllParameters();
    const std::string expected = ": expected at least 0 and below 1";
    EXPECT_EQ(InvalidArgumentMessage([&] { AdamW(all, {.beta1 = 1}); }),
              "AdamW: the options have beta1 1" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { AdamW8Bit(all, {.beta2 = 1}); }),
              "AdamW8Bit: the options have beta2 1" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Lamb(all, {.beta1 = -0.5}); }),
              "Lamb: the options have beta1 -0.5" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Lion(all, {.beta2 = INFINITY}); }),
              "Lion: the options have beta2 inf" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Muon(all, {.adamw = {.beta2 = 1}}); }),
              "Muon: the options have beta2 1" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { AdamW(all, {.eps = -0.5}); }),
              "AdamW: the options have eps -0.5: expected at least 0");
    EXPECT_EQ(InvalidArgumentMessage([&] { Lamb(all, {.eps = INFINITY}); }),
              "Lamb: the options have eps inf: expected at least 0");
    EXPECT_EQ(MessageOf([&] { AdamW(all, {.beta1 = 0, .beta2 = 0, .eps = 0}); }), "no error");
  });
}

// A decay below 0 lets weights grow with every update, and one that is NaN makes them so in the first.
TEST(OptimizerTest, DecayAndMomentumOfTheOptionsAreChecked) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.Lay(context, {"[-, -]", "[-]", "[-]"}, DType::kF32);
    const std::vector<Parameter*> all = model.AllParameters();
    const std::string expected = ": expected at least 0";
    EXPECT_EQ(InvalidArgumentMessage([&] { AdamW(all, {.weight_decay = -1}); }),
              "AdamW: the options have weight_decay -1" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { AdamW(all, {.weight_decay = NAN}); }),
              "AdamW: the options have weight_decay nan" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { AdamW8Bit(all, {.weight_decay = INFINITY}); }),
              "AdamW8Bit: the options have weight_decay inf" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Lamb(all, {.weight_decay = -0.5}); }),
              "Lamb: the options have weight_decay -0.5" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Lion(all, {.weight_decay = -0.5}); }),
              "Lion: the options have weight_decay -0.5" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Adafactor(all, {.weight_decay = -0.5}); }),
              "Adafactor: the options have weight_decay -0.5" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Sgd(all, {.weight_decay = -0.5}); }),
              "Sgd: the options have weight_decay -0.5" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Muon(all, {.weight_decay = -0.5}); }),
              "Muon: the options have weight_decay -0.5" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Muon(all, {.adamw = {.weight_decay = -2}}); }),
              "Muon: the options have weight_decay -2" + expected);
    EXPECT_EQ(InvalidArgumentMessage([&] { Sgd(all, {.momentum = 1}); }),
              "Sgd: expected a momentum of at least 0 and below 1, got 1");
    EXPECT_EQ(InvalidArgumentMessage([&] { Sgd(all, {.momentum = -0.5, .nesterov = true}); }),
              "Sgd: expected a momentum of at least 0 and below 1, got -0.5");
    EXPECT_EQ(MessageOf([&] { Sgd(all, {.momentum = 0, .weight_decay = 0}); }), "no error");
  });
}

TEST(OptimizerTest, StateLiesAsTheParametersAndIsNamed) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.Lay(context, {"[b.a, -]", "[a]", "[-]"}, DType::kF32);
    const auto texts = [](const Optimizer& optimizer) {
      std::vector<std::string> result;
      for (const auto& [name, tensor] : optimizer.State()) result.push_back(name + " " + tensor.ToString());
      return result;
    };
    EXPECT_THAT(texts(AdamW(model.AllParameters(), {})),
                ElementsAre("matrix.m f32[5, 3] [b.a, -]", "vector.m f32[5] [a]", "unused.m f32[2] [-]",
                            "matrix.v f32[5, 3] [b.a, -]", "vector.v f32[5] [a]", "unused.v f32[2] [-]",
                            "updates i64[] []"));
    EXPECT_THAT(texts(Sgd({&model.vector}, {.momentum = 0.9})),
                ElementsAre("vector.momentum f32[5] [a]", "updates i64[] []"));
    EXPECT_THAT(texts(Sgd(model.AllParameters(), {})), ElementsAre("updates i64[] []"));
    EXPECT_TRUE(AdamW({}, {}).State().empty());
  });
}

// State handles see the updates: that is how they are saved.
TEST(OptimizerTest, StateIsLive) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    Materialize(model, context);
    Sgd sgd({&model.vector}, {.momentum = 0.9});
    const DTensor momentum = sgd.State()[0].second;
    EXPECT_EQ(momentum.ToLocal().ToVector<float>(), std::vector<float>(5, 0));
    model.vector.SetGrad(Full(context, DType::kF32, {5}, 3));
    sgd.Step(0.1);
    EXPECT_EQ(momentum.ToLocal().ToVector<float>(), std::vector<float>(5, 3));
  });
}

TEST(OptimizerTest, AScaleThatIsNotFiniteSkipsTheUpdate) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.Lay(context, {"[a, -]", "[a]", "[-]"}, DType::kF32);
    Sgd sgd({&model.vector}, {});
    Sgd momentum({&model.vector}, {.momentum = 0.9});
    AdamW adamw({&model.vector}, {});
    model.vector.SetGrad(Full(context, DType::kF32, {5}, 1, model.vector.layouts().at_rest));
    const std::vector<float> before = model.vector.at_rest().ToLocal().ToVector<float>();
    for (double scale : {std::nan(""), static_cast<double>(INFINITY)}) {
      for (Optimizer* optimizer : std::initializer_list<Optimizer*>{&sgd, &momentum, &adamw}) {
        optimizer->Step(0.1, Full(context, DType::kF32, {}, scale));
        EXPECT_EQ(model.vector.at_rest().ToLocal().ToVector<float>(), before);
      }
    }
    sgd.Step(0.1, Full(context, DType::kF32, {}, 1));
    EXPECT_NE(model.vector.at_rest().ToLocal().ToVector<float>(), before);
  });
}

// It is the scale that says whether gradients are finite: a step without one takes them as they are.
TEST(OptimizerTest, WithoutAScaleNoUpdateIsSkipped) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.Lay(context, {"[a, -]", "[a]", "[-]"}, DType::kF64);
    Sgd sgd({&model.vector}, {});
    model.vector.SetGrad(Full(context, DType::kF64, {5}, NAN, model.vector.layouts().at_rest));
    const auto updates = [&] { return sgd.updates().ToLocal().ToVector<int64_t>(); };
    const std::vector<double> before = model.vector.at_rest().ToLocal().ToVector<double>();
    sgd.Step(0.1, ComputeGlobalNorm({&model.vector}, /*max_norm=*/INFINITY).scale);
    EXPECT_THAT(updates(), ElementsAre(0));
    EXPECT_EQ(model.vector.at_rest().ToLocal().ToVector<double>(), before);
    sgd.Step(0.1);
    EXPECT_THAT(updates(), ElementsAre(1));
    EXPECT_THAT(model.vector.at_rest().ToLocal().ToVector<double>(), Each(IsNan()));
  });
}

// Bias correction is of the updates that were made: what lies between them does not show.
TEST(OptimizerTest, ASkippedUpdateIsNotCounted) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const auto values_after = [&](const std::vector<double>& scales) {
      Model model;
      model.Lay(context, {"[a, -]", "[a]", "[-]"}, DType::kF64);
      AdamW adamw({&model.vector}, {});
      for (double scale : scales) {
        model.vector.SetGrad(Full(context, DType::kF64, {5}, scale, model.vector.layouts().at_rest));
        adamw.Step(0.1, Full(context, DType::kF32, {}, scale));
      }
      return model.vector.at_rest().ToLocal().ToVector<double>();
    };
    const std::vector<double> expected = values_after({1, 0.5, 0.25});
    EXPECT_EQ(values_after({1, std::nan(""), 0.5, INFINITY, INFINITY, 0.25}), expected);
    EXPECT_EQ(values_after({std::nan(""), 1, 0.5, 0.25}), expected);
  });
}

// The count on the host is a copy, which no later step brings up to date.
TEST(OptimizerTest, AfterAnUpdateOnTheHostHasFailedStepsAreCounted) {
  class FailsAtFirst : public Optimizer {
   public:
    explicit FailsAtFirst(std::vector<Parameter*> parameters)
        : Optimizer(std::move(parameters), "FailsAtFirst", {}) {}

   protected:
    void Update(absl::Span<const int> /*indices*/, double /*lr*/, const DTensor& /*scale*/) override {
      if (std::exchange(fails_, false)) Throw(absl::StatusCode::kInternal, "no update");
    }
    std::vector<std::pair<std::string, DTensor>> Moments() const override { return {}; }

   private:
    bool fails_ = true;
  };
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.vector.set_memory({.state_on_host = true});
    model.Lay(context, {"[-, -]", "[-]", "[-]"}, DType::kF64);
    FailsAtFirst optimizer({&model.matrix, &model.vector});
    model.vector.SetGrad(Full(context, DType::kF64, {5}, 1));
    EXPECT_EQ(MessageOf([&] { optimizer.Step(0.1); }), "no update");
    EXPECT_EQ(optimizer.updates().Item(), 1);
    optimizer.ZeroGrad();
    model.matrix.SetGrad(Full(context, DType::kF64, {5, 3}, 1));
    optimizer.Step(0.1);
    EXPECT_EQ(optimizer.updates().Item(), 2);
  });
}

TEST(OptimizerTest, ParametersOfAnyFloatingDType) {
  for (DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
    OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
      Model model;
      model.Lay(context, {"[a, -]", "[a]", "[a]"}, dtype);
      Sgd sgd({&model.unused}, {});
      model.unused.SetGrad(Full(context, dtype, {2}, 2, model.unused.layouts().at_rest));
      sgd.Step(0.25);
      EXPECT_EQ(model.unused.at_rest().ToLocal().ToVector<float>(), std::vector<float>{0.5}) << dtype;
      AdamW adamw({&model.unused}, {.weight_decay = 0});
      adamw.Step(0.25);  // the first step of Adam is lr times the sign
      EXPECT_NEAR(model.unused.at_rest().ToLocal().ToVector<float>()[0], 0.25, 1e-2) << dtype;
    });
  }
}

// One call updates all of a model that no rank gathers anything of, with elements or without.
TEST(OptimizerTest, ParametersWithoutElements) {
  class Counts : public Optimizer {
   public:
    explicit Counts(std::vector<Parameter*> parameters) : Optimizer(std::move(parameters), "Counts", {}) {}
    std::vector<size_t> calls;  // how many parameters each updates

   protected:
    void Update(absl::Span<const int> indices, double /*lr*/, const DTensor& /*scale*/) override {
      WEFT_REQUIRE(!indices.empty(), "an update of nothing");
      calls.push_back(indices.size());
    }
    std::vector<std::pair<std::string, DTensor>> Moments() const override { return {}; }
  };
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Module model;
    Parameter full(&model, "full", {.shape = {2}}), empty(&model, "empty", {.shape = {0, 3}});
    Materialize(model, context, {.dtype = DType::kF64});
    Counts optimizer({&full, &empty});
    empty.SetGrad(Full(context, DType::kF64, {0, 3}, 1));
    optimizer.Step(0.1);
    full.SetGrad(Full(context, DType::kF64, {2}, 1));
    optimizer.Step(0.1);
    EXPECT_THAT(optimizer.calls, ElementsAre(1, 2));
  });
}

TEST(OptimizerTest, ZeroGradAndStepsOfATrainedModel) {
  OnMesh("dp=2", [](const IntrusivePtr<MeshContext>& context) {
    Model model;
    model.Lay(context, {"[dp, -]", "[-]", "[-]"}, DType::kF64);
    Sgd sgd(model.AllParameters(), {});
    EXPECT_EQ(sgd.parameters().size(), 3u);
    double last = INFINITY;
    for (int step = 0; step < 5; ++step) {
      const DTensor loss = Sum(Square(model.matrix.Value())) + Sum(Square(model.vector.Value()));
      EXPECT_LT(loss.Item(), last);
      last = loss.Item();
      sgd.ZeroGrad();
      EXPECT_FALSE(model.matrix.grad().defined());
      Backward(loss);
      sgd.Step(0.25);  // p -= 0.25 * 2 p: halves p
    }
    EXPECT_NEAR(Sum(Square(model.matrix.Value())).Item() + Sum(Square(model.vector.Value())).Item(), last / 4,
                1e-12);
  });
}

}  // namespace
}  // namespace weft
