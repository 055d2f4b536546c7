#include "dtensor/optim/adamw_8bit.h"

#include <cmath>
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
