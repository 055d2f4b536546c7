// Optimizers and weight averages against PyTorch's numbers, or the paper's algorithm (optimizers.json,
// computed by make_optimizer_golden.py): parameters after a few steps, in f64, on one rank and under every
// kind of layout.

#include <cmath>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/adafactor.h"
#include "dtensor/optim/lamb.h"
#include "dtensor/optim/lion.h"
#include "dtensor/optim/muon.h"
#include "dtensor/optim/sgd.h"
#include "dtensor/optim/weight_average.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using Json = nlohmann::json;
using Parameters = std::vector<Parameter*>;

constexpr double kTolerance = 1e-12;

Json ReadGolden() {
  std::ifstream file("tests/golden/optimizers.json");
  return file ? Json::parse(file) : Json();
}

// As make_gpt_golden.py has it.
uint64_t Mixed(uint64_t stream, uint64_t index) {
  uint64_t z = ((stream << 32) + index + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Uniform between -1 and 1.
Tensor Elements(const Shape& shape, uint64_t stream) {
  std::vector<double> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = 2 * (static_cast<double>(Mixed(stream, i) >> 11) * 0x1p-53) - 1;
  }
  return Tensor::FromValues<double>(shape, values);
}

// Where parameters lie at rest and their state: the letters of axes that split dim 0, and of those that
// split the last.
struct Setting {
  const char* mesh;
  std::vector<int> first_dim;  // axes, outermost first
  std::vector<int> last_dim;
  bool state_alone = false;  // ZeRO-1: whole at rest
};

const Setting kSettings[] = {
    {"", {}, {}},             // one rank
    {"a=2", {}, {}},          // replicas
    {"a=2", {0}, {}},         // uneven pieces
    {"a=4", {}, {0}},         // uneven along the last dim; of three elements one piece is empty
    {"a=2,b=2", {1, 0}, {}},  // two axes, nested the other way round
    {"a=2,b=2", {0}, {1}},    // both dims
    {"a=3,b=2", {1}, {}},     // replicas of pieces
    {"a=4", {0}, {}, /*state_alone=*/true},  // ZeRO-1
};

Layout LayoutOf(const Setting& setting, int ndim, int num_axes) {
  Layout layout(ndim, num_axes);
  for (const int axis : setting.first_dim) layout = layout.WithShard(axis, 0);
  for (const int axis : setting.last_dim) layout = layout.WithShard(axis, -1);
  return layout;
}

// "p0", "p1", ...; the last one does not decay.
class Model : public Module {
 public:
  Model(const Json& shapes, const Setting& setting, const IntrusivePtr<MeshContext>& context) {
    Bind(context);
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Shape shape(shapes[i].get<std::vector<int64_t>>());
      all_.emplace_back(this, "p" + std::to_string(i),
                        ParameterSpec{.shape = shape, .decays = i + 1 < shapes.size()});
      const Layout split = LayoutOf(setting, shape.ndim(), context->mesh().num_axes());
      const Layout whole(shape.ndim(), context->mesh().num_axes());
      const Layout& at_rest = setting.state_alone ? whole : split;
      all_.back().Materialize(context, DType::kF64, DType::kF64,
                              {.at_rest = at_rest, .compute = at_rest, .gradient = split, .state = split});
      all_.back().Load(DTensor::Distribute(context, Elements(shape, i), at_rest));
    }
  }

  void SetGradients(int step) {
    for (size_t i = 0; i < all_.size(); ++i) {
      Parameter& p = all_[i];
      const Tensor gradient = Elements(p.spec().shape, 100 * static_cast<uint64_t>(step) + i);
      p.SetGrad(DTensor::Distribute(p.at_rest().context(), gradient, p.layouts().of_gradient()));
    }
  }

 private:
  std::deque<Parameter> all_;
};

struct Case {
  const char* name;
  std::function<std::unique_ptr<Optimizer>(const Parameters&, double weight_decay)> make;
  std::optional<WeightAverageOptions> average = std::nullopt;
};

template <class O, class Options>
std::unique_ptr<Optimizer> Make(const Parameters& parameters, const Options& options) {
  return std::make_unique<O>(parameters, options);
}

std::vector<Case> Cases() {
  const auto sgd = [](const Parameters& p, double w) { return Make<Sgd>(p, SgdOptions{.weight_decay = w}); };
  return {
      {"nesterov",
       [](const Parameters& p, double w) {
         return Make<Sgd>(p, SgdOptions{.momentum = 0.9, .nesterov = true, .weight_decay = w});
       }},
      {"lion", [](const Parameters& p, double w) { return Make<Lion>(p, LionOptions{.weight_decay = w}); }},
      {"lamb", [](const Parameters& p, double w) { return Make<Lamb>(p, LambOptions{.weight_decay = w}); }},
      {"adafactor",
       [](const Parameters& p, double w) { return Make<Adafactor>(p, AdafactorOptions{.weight_decay = w}); }},
      {"adafactor_d2",
       [](const Parameters& p, double w) {
         return Make<Adafactor>(
             p, AdafactorOptions{.beta2_decay = -0.5, .eps1 = 1e-4, .eps2 = 0.2, .d = 2, .weight_decay = w});
       }},
      {"muon",
       [](const Parameters& p, double w) {
         return Make<Muon>(p, MuonOptions{.weight_decay = w, .groups = {{.path = "", .matrix = "oi"}}});
       }},
      {"muon_rms",
       [](const Parameters& p, double w) {
         return Make<Muon>(p, MuonOptions{.momentum = 0.8,
                                          .nesterov = false,
                                          .weight_decay = w,
                                          .adjust = MuonAdjust::kMatchRmsAdamW,
                                          .groups = {{.path = "", .matrix = "oi"}}});
       }},
      {"ema", sgd, WeightAverageOptions{.decay = 0.9}},
      {"swa", sgd, WeightAverageOptions{}},
  };
}

double LearningRate(int step) { return 0.05 / step; }

void Check(const Json& golden, const Case& which, const Setting& setting,
           const IntrusivePtr<MeshContext>& context) {
  Json of_case;
  for (const Json& entry : golden["cases"]) {
    if (entry["name"] == which.name) of_case = entry;
  }
  ASSERT_TRUE(of_case.is_object()) << which.name;
  Model model(of_case["shapes"], setting, context);
  const Parameters parameters = model.AllParameters();
  const std::unique_ptr<Optimizer> optimizer = which.make(parameters, golden["weight_decay"]);
  std::optional<WeightAverage> average;
  if (which.average) average.emplace(parameters, *which.average);
  for (int step = 1; step <= golden["steps"]; ++step) {
    model.SetGradients(step);
    optimizer->Step(LearningRate(step), Full(context, DType::kF64, {}, golden["scale"]));
    if (average) average->Update();
  }
  if (average) average->SwapWithModel();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::vector<double> expected = of_case["final"][i];
    const std::vector<double> values = parameters[i]->at_rest().FullTensor().ToVector<double>();
    ASSERT_EQ(values.size(), expected.size());
    for (size_t j = 0; j < values.size(); ++j) {
      EXPECT_NEAR(values[j], expected[j], kTolerance)
          << which.name << " " << parameters[i]->at_rest().ToString() << " on " << setting.mesh
          << ", element " << j;
    }
  }
}

TEST(GoldenOptimizersTest, UpdatesAreTheReferences) {
  const Json golden = ReadGolden();
  ASSERT_TRUE(golden.is_object()) << "tests/golden/optimizers.json cannot be read";
  const std::vector<Case> cases = Cases();
  ASSERT_EQ(golden["cases"].size(), cases.size());
  for (const Case& which : cases) {
    for (const Setting& setting : kSettings) {
      OnMesh(setting.mesh,
             [&](const IntrusivePtr<MeshContext>& context) { Check(golden, which, setting, context); });
    }
  }
}

}  // namespace
}  // namespace weft
