#include "dtensor/optim/adamw_8bit.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "gtest/gtest.h"
#include "tests/dtensor/optim/optimizer_cases.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using Context = IntrusivePtr<MeshContext>;

// Rows of more than a block, a vector of several blocks, and one that is too small for blocks.
class Model : public Module {
 public:
  Parameter matrix{this, "matrix", {.shape = {7, 300}, .initializer = Initializer::Normal(0, 1)}};
  Parameter vector{this, "vector", {.shape = {1000}, .initializer = Initializer::Normal(0, 1)}};
  Parameter small{this, "small", {.shape = {5}, .initializer = Initializer::Normal(0, 1)}};

  void Lay(const Context& context, int dim, DType dtype) {
    Bind(context);
    for (Parameter* p : parameters()) {
      Layout layout(p->spec().shape.ndim(), context->mesh().num_axes());
      for (int axis = 0; axis < context->mesh().num_axes(); ++axis) layout = layout.WithShard(axis, dim);
      p->Materialize(context, dtype, dtype, {layout, layout});
    }
  }

  // Magnitudes between 0.1 and 1, whose squares the dynamic map tells apart.
  void SetGradients(int step) {
    for (size_t k = 0; k < parameters().size(); ++k) {
      Parameter& p = *parameters()[k];
      std::vector<double> values =
          RandomF64(p.spec().shape, 10 * static_cast<uint64_t>(step) + k).ToVector<double>();
      for (double& value : values) value = std::copysign(0.1 + 0.9 * std::abs(value), value);
      const Tensor full = FromDoubles(p.at_rest().dtype(), p.spec().shape, values);
      p.SetGrad(DTensor::Distribute(p.at_rest().context(), full, p.at_rest().layout()));
    }
  }
};

std::unique_ptr<Optimizer> MakeWhole(Model& model) {
  return std::make_unique<AdamW>(model.AllParameters(), AdamWOptions{});
}
std::unique_ptr<Optimizer> Make8Bit(Model& model) {
  return std::make_unique<AdamW8Bit>(model.AllParameters(), AdamW8BitOptions{.min_elements = 100});
}

// Parameters and state after some steps, whole.
std::vector<std::vector<double>> Trained(const char* mesh, int dim,
                                         std::unique_ptr<Optimizer> (*make)(Model&)) {
  std::vector<std::vector<double>> values;
  OnMesh(mesh, [&](const Context& context) {
    Model model;
    model.Lay(context, dim, DType::kF32);
    const std::unique_ptr<Optimizer> optimizer = make(model);
    for (int step = 1; step <= 10; ++step) {
      model.SetGradients(step);
      optimizer->Step(0.01);
    }
    std::vector<std::vector<double>> here;
    for (const Parameter* p : model.AllParameters())
      here.push_back(p->at_rest().FullTensor().ToVector<double>());
    for (const auto& [name, tensor] : optimizer->State())
      here.push_back(tensor.FullTensor().ToVector<double>());
    if (context->world().rank() == 0) values = here;
  });
  return values;
}

TEST(AdamW8BitTest, EveryLayoutHasTheSameBits) {
  const auto expected = Trained("", 0, Make8Bit);
  for (const char* mesh : {"a=2", "a=3", "a=2,b=2", "a=8"}) {
    for (const int dim : {0, -1}) EXPECT_EQ(Trained(mesh, dim, Make8Bit), expected) << mesh << " " << dim;
  }
}

// AdamW moves every element by about lr; ten steps of 0.01 that differ by a few percent.
TEST(AdamW8BitTest, IsNearAdamW) {
  const auto whole = Trained("", 0, MakeWhole), quantized = Trained("", 0, Make8Bit);
  for (const size_t p : {0, 1}) {
    double squares = 0, largest = 0;
    for (size_t i = 0; i < whole[p].size(); ++i) {
      const double difference = std::abs(whole[p][i] - quantized[p][i]);
      squares += difference * difference;
      largest = std::max(largest, difference);
    }
    EXPECT_LT(std::sqrt(squares / static_cast<double>(whole[p].size())), 0.005);
    EXPECT_GT(largest, 1e-5);  // and not AdamW itself
  }
  EXPECT_EQ(whole[2], quantized[2]);  // too small: AdamW's own
}

// The values of 8 bits, as bitsandbytes' create_dynamic_map makes them: seven decades up to 1, of which each has twice as many
// values as the one below, in the middles of equal parts; 0 and 1.
std::vector<double> DynamicValues(bool is_signed) {
  std::vector<double> values = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = (is_signed ? 1 : 2) << decade;
    for (int part = 0; part < parts; ++part) {
      const double low = 0.1 + 0.9 * part / parts, high = 0.1 + 0.9 * (part + 1) / parts;
      const double value = std::pow(10.0, decade - 6) * (low + high) / 2;
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

// A parameter's values, and a moment's codes and scales, as numbers.
struct Moment {
  std::vector<double> codes, scales;
};
Moment MomentOf(const Optimizer& optimizer, const std::string& name) {
  Moment moment;
  for (const auto& [of, tensor] : optimizer.State()) {
    if (of != name && of != name + "_scale") continue;
    (of == name ? moment.codes : moment.scales) = tensor.FullTensor().ToVector<double>();
  }
  return moment;
}

// Each step beside the same one in f64, from the state that there is before it: the paper's algorithm, element by element.
TEST(AdamW8BitTest, EachStepIsThePapers) {
  constexpr double kLr = 0.01, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kDecay = 0.01;
  const std::vector<double> of_m = DynamicValues(true), of_v = DynamicValues(false);
  ASSERT_EQ(of_m.size(), 256u);
  ASSERT_EQ(of_v.size(), 256u);
  OnMesh("", [&](const Context& context) {
    Model model;
    model.Lay(context, 0, DType::kF32);
    AdamW8Bit optimizer(model.AllParameters(), {.weight_decay = kDecay, .min_elements = 100});
    // Blocks of 256 elements of a row.
    const struct {
      Parameter& parameter;
      std::string path;
      int64_t row;
    } cases[] = {{model.matrix, "matrix", 300}, {model.vector, "vector", 1000}};
    for (int step = 1; step <= 6; ++step) {
      model.SetGradients(step);
      std::vector<std::vector<double>> before, gradients;
      std::vector<Moment> m, v;
      for (const auto& [parameter, path, row] : cases) {
        before.push_back(parameter.at_rest().ToLocal().ToVector<double>());
        gradients.push_back(parameter.grad().ToLocal().ToVector<double>());
        m.push_back(MomentOf(optimizer, path + ".m"));
        v.push_back(MomentOf(optimizer, path + ".v"));
      }
      optimizer.Step(kLr);
      for (size_t k = 0; k < std::size(cases); ++k) {
        const auto& [parameter, path, row] = cases[k];
        const int64_t blocks = (row + 255) / 256;
        const auto block_of = [&, row = row](size_t i) { return i / row * blocks + i % row / 256; };
        const std::vector<double> after = parameter.at_rest().ToLocal().ToVector<double>();
        std::vector<double> first(after.size()), second(after.size());
        for (size_t i = 0; i < after.size(); ++i) {
          const double g = gradients[k][i];
          first[i] =
              kBeta1 * of_m[static_cast<int>(m[k].codes[i])] * m[k].scales[block_of(i)] + (1 - kBeta1) * g;
          second[i] = kBeta2 * of_v[static_cast<int>(v[k].codes[i])] * v[k].scales[block_of(i)] +
                      (1 - kBeta2) * g * g;
          const double direction = first[i] / (1 - std::pow(kBeta1, step)) /
                                   (std::sqrt(second[i] / (1 - std::pow(kBeta2, step))) + kEps);
          EXPECT_NEAR(after[i], before[k][i] * (1 - kLr * kDecay) - kLr * direction, 2e-6)
              << path << " " << i << " step " << step;
        }
        const auto expect_quantized = [&](const std::vector<double>& values, const Moment& moment,
                                          const std::vector<double>& map) {
          std::vector<double> largest(moment.scales.size());
          for (size_t i = 0; i < values.size(); ++i) {
            largest[block_of(i)] = std::max(largest[block_of(i)], std::abs(values[i]));
          }
          for (size_t b = 0; b < largest.size(); ++b) {
            EXPECT_NEAR(moment.scales[b], largest[b], 1e-6 * largest[b]) << path << " block " << b;
          }
          for (size_t i = 0; i < values.size(); ++i) {
            const double scale = moment.scales[block_of(i)];
            double nearest = INFINITY;
            for (const double value : map) nearest = std::min(nearest, std::abs(value * scale - values[i]));
            const double own = std::abs(map[static_cast<int>(moment.codes[i])] * scale - values[i]);
            EXPECT_LE(own, nearest + 1e-6 * scale) << path << " " << i << " step " << step;
          }
        };
        expect_quantized(first, MomentOf(optimizer, path + ".m"), of_m);
        expect_quantized(second, MomentOf(optimizer, path + ".v"), of_v);
      }
    }
  });
}

// Of v only 0 is kept as 0. An element that kept its m and lost its v would move by m / eps where its gradient is 0.
TEST(AdamW8BitTest, ASmallElementKeepsItsSquares) {
  constexpr double kLr = 0.01;
  OnMesh("", [&](const Context& context) {
    Model model;
    model.Lay(context, 0, DType::kF32);
    AdamW8Bit optimizer({&model.matrix}, {.weight_decay = 0, .min_elements = 100});
    const Shape& shape = model.matrix.spec().shape;
    // How far the first element moves.
    const auto step = [&](const std::vector<double>& gradients) {
      const double before = model.matrix.at_rest().ToLocal().ToVector<double>()[0];
      model.matrix.SetGrad(DTensor::Distribute(context, FromDoubles(DType::kF32, shape, gradients),
                                               model.matrix.at_rest().layout()));
      optimizer.Step(kLr);
      return std::abs(model.matrix.at_rest().ToLocal().ToVector<double>()[0] - before);
    };
    std::vector<double> gradients(static_cast<size_t>(shape.num_elements()), 1);
    gradients[0] = 1e-5;  // its square is 1e-10 of the block's largest
    gradients[1] = 0;
    EXPECT_NEAR(step(gradients), kLr, 0.1 * kLr);
    EXPECT_LT(step(std::vector<double>(gradients.size(), 0)), 3 * kLr);
    const Moment v = MomentOf(optimizer, "matrix.v");
    EXPECT_EQ(v.codes[0], 1);
    EXPECT_EQ(v.codes[1], 0);
  });
}

TEST(AdamW8BitTest, StateIsCodesAndScales) {
  OnMesh("a=2", [](const Context& context) {
    Model model;
    model.Lay(context, 0, DType::kF32);
    const std::unique_ptr<Optimizer> optimizer = Make8Bit(model);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : optimizer->State()) names.push_back(name + " " + tensor.ToString());
    EXPECT_EQ(names,
              (std::vector<std::string>{
                  "small.m f32[5] [a]", "small.v f32[5] [a]", "matrix.m u8[7, 300] [a, -]",
                  "vector.m u8[1000] [a]", "matrix.m_scale f32[7, 2] [a, -]", "vector.m_scale f32[4] [-]",
                  "matrix.v u8[7, 300] [a, -]", "vector.v u8[1000] [a]", "matrix.v_scale f32[7, 2] [a, -]",
                  "vector.v_scale f32[4] [-]", "updates i64[] []"}));
    // Rows stay where they are; a vector that is cut has blocks that reach over the cut.
    model.SetGradients(1);
    context->world().ledger().Clear();
    optimizer->Step(0.1);
    EXPECT_EQ(LedgerText(*context), "all_reduce a norm, all_reduce a norm");
    EXPECT_EQ(ErrorOf([&] { AdamW8Bit(model.AllParameters(), {.min_elements = -1}); }),
              "AdamW8Bit: expected min_elements of 0 or more, got -1");
  });
}

}  // namespace
}  // namespace weft
