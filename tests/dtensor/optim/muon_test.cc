#include "dtensor/optim/muon.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "tests/dtensor/optim/optimizer_cases.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using Split = OptimizedModel::Split;
using Context = IntrusivePtr<MeshContext>;

DTensor Random(const Context& context, const Shape& shape, uint64_t seed) {
  return DTensor::Distribute(context, RandomF64(shape, seed),
                             Layout(shape.ndim(), context->mesh().num_axes()));
}

// u v^T of u s v^T, whatever s, up to what the coefficients leave: products with its transpose are near the
// identity.
TEST(NewtonSchulzTest, MakesMatricesNearlyOrthogonal) {
  OnMesh("", [](const Context& context) {
    for (const Shape& shape : {Shape{4, 9}, Shape{9, 4}, Shape{5, 5}, Shape{1, 3}}) {
      const DTensor x = Random(context, shape, 7);
      const DTensor y = NewtonSchulz(x, "io");
      const bool wide = shape[0] <= shape[1];
      const DTensor gram = wide ? Contract(y, "il", y, "jl", "ij") : Contract(y, "li", y, "lj", "ij");
      const std::vector<double> values = gram.ToLocal().ToVector<double>();
      const auto n = static_cast<size_t>(std::min(shape[0], shape[1]));
      for (size_t i = 0; i < n; ++i) {
        // Singular values settle between 0.68 and 1.13 (Jordan); squares are what stands here.
        EXPECT_GT(values[i * n + i], 0.4) << shape.ToString();
        EXPECT_LT(values[i * n + i], 1.5) << shape.ToString();
      }
      // The polar factor has the same row space, and never points against x.
      EXPECT_GT(Sum(Mul(x, y)).Item(), 0);
    }
    // Cubic coefficients that settle: x <- 1.5 x - 0.5 x x^T x goes to the identity's like.
    const DTensor x = Random(context, {4, 6}, 3);
    const DTensor y = NewtonSchulz(x, "io", {.steps = 40, .a = 1.5, .b = -0.5, .c = 0});
    const std::vector<double> gram = Contract(y, "il", y, "jl", "ij").ToLocal().ToVector<double>();
    for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(gram[i], i % 5 == 0 ? 1 : 0, 1e-12);
  });
}

// Dims of one role are one side of the matrix, batch dims count matrices: as reshaped by hand.
TEST(NewtonSchulzTest, RolesSayWhatIsAMatrix) {
  OnMesh("", [](const Context& context) {
    const DTensor x = Random(context, {6, 3, 2, 2}, 1);
    const DTensor three = NewtonSchulz(x, "iboo");
    for (int64_t t = 0; t < 3; ++t) {
      const DTensor one = NewtonSchulz(Reshape(Slice(x, 1, t, 1), {6, 4}), "io");
      EXPECT_TRUE(AllClose(Reshape(Slice(three, 1, t, 1), {6, 4}).FullTensor(), one.FullTensor(), 1e-13))
          << t;
    }
    const DTensor merged = NewtonSchulz(x, "iooo");
    EXPECT_TRUE(AllClose(Reshape(merged, {6, 12}).FullTensor(),
                         NewtonSchulz(Reshape(x, {6, 12}), "io").FullTensor(), 1e-13));
    EXPECT_FALSE(AllClose(merged.FullTensor(), three.FullTensor(), 1e-3));
    EXPECT_EQ(ErrorOf([&] { NewtonSchulz(x, "io"); }),
              "NewtonSchulz: expected a role per dim of f64[6, 3, 2, 2] [-, -, -, -], got 'io'");
    EXPECT_EQ(ErrorOf([&] { NewtonSchulz(x, "iboo", {.steps = -1}); }),
              "NewtonSchulz: expected at least 0 steps, got -1");
  });
}

class Layers : public Module {
 public:
  Parameter a{this, "a", {.shape = {4, 6}, .initializer = Initializer::Normal(0, 1)}};
  Parameter b{this, "b", {.shape = {4, 6}, .initializer = Initializer::Normal(0, 1)}};
  Parameter c{this, "c", {.shape = {4, 6}, .initializer = Initializer::Normal(0, 1)}};
};

// What an update of three matrices sends: where they are split, stacks go there and back; otherwise nothing.
TEST(MuonTest, SplitMatricesGoByAllToAll) {
  struct Moved {
    const char* mesh;
    const char* layout;
    const char* ledger;
  };
  const char* const two_stacks =
      "all_to_all a param, all_to_all a param, all_to_all a param, all_to_all a param";
  for (const Moved& moved :
       {Moved{"", "[-, -]", ""}, Moved{"a=2", "[-, -]", ""}, Moved{"a=2", "[a, -]", two_stacks},
        Moved{"a=2", "[-, a]", two_stacks},
        Moved{"a=2,b=2", "[a, b]", "all_to_all a.b param, all_to_all b param, all_to_all a param"}}) {
    OnMesh(moved.mesh, [&](const Context& context) {
      Layers model;
      model.Bind(context);
      const Layout layout = Layout::Parse(moved.layout, context->mesh());
      for (Parameter* p : model.AllParameters()) {
        p->Materialize(context, DType::kF64, DType::kF64, {layout, layout});
        p->SetGrad(DTensor::Distribute(context, RandomF64({4, 6}, 1), layout));
      }
      Muon muon(model.AllParameters(), {.groups = {{.path = "", .matrix = "io"}}});
      context->world().ledger().Clear();
      muon.Step(0.1);
      EXPECT_EQ(LedgerText(*context), moved.ledger) << moved.mesh;
    });
  }
}

TEST(MuonTest, StateAndMisuse) {
  OnMesh("a=2", [](const Context& context) {
    OptimizedModel model;
    model.Lay(context, Split::kFirst);
    const std::vector<ParameterGroup> groups = {{.path = "matrix", .matrix = "io"}};
    const Muon muon(model.AllParameters(), {.groups = groups});
    std::vector<std::string> names;
    for (const auto& [name, tensor] : muon.State()) names.push_back(name + " " + tensor.ToString());
    EXPECT_EQ(names, (std::vector<std::string>{"qkv.m f64[6, 3, 2, 2] [a, -, -, -]", "vector.m f64[7] [a]",
                                               "qkv.v f64[6, 3, 2, 2] [a, -, -, -]", "vector.v f64[7] [a]",
                                               "matrix.momentum f64[5, 3] [a, -]", "updates i64[] []"}));
    const auto error = [&](const MuonOptions& options) {
      return ErrorOf([&] { Muon(model.AllParameters(), options); });
    };
    EXPECT_EQ(error({.groups = {{.path = "qkv", .matrix = "io"}}}),
              "Muon: parameter 'qkv' has 4 dims and the matrix 'io': expected a letter per dim");
    EXPECT_EQ(error({.momentum = 1}), "Muon: expected a momentum of at least 0 and below 1, got 1");
    EXPECT_EQ(error({.adamw = {.groups = groups}}),
              "Muon: expected no groups in its AdamW's options: groups are Muon's");
  });
}

// Products in bf16, as PyTorch's: near those in f32, and not the same.
TEST(MuonTest, ProductsMayBeInBf16) {
  OnMesh("a=2", [](const Context& context) {
    std::vector<std::vector<double>> values;
    for (const auto& products : {std::optional<DType>(), std::optional<DType>(DType::kBF16)}) {
      OptimizedModel model;
      model.Lay(context, Split::kFirst);
      Muon muon(model.AllParameters(),
                {.products = products, .groups = {{.path = "matrix", .matrix = "io"}}});
      model.SetGradients(1);
      muon.Step(0.1);
      values.push_back(model.Values());
    }
    double largest = 0;
    for (size_t i = 0; i < values[0].size(); ++i)
      largest = std::max(largest, std::abs(values[0][i] - values[1][i]));
    EXPECT_GT(largest, 1e-6);
    EXPECT_LT(largest, 1e-2);
  });
}

// A momentum in f16 of gradients that are scaled by what f16 rounds to 0: u does not depend on the size of g.
TEST(MuonTest, TheScaleIsNotRoundedToTheGradientsDType) {
  OnMesh("a=2", [](const Context& context) {
    std::vector<std::vector<double>> values;
    for (const double scale : {1.0, 1e-8}) {
      Layers model;
      model.Bind(context);
      const Layout layout = Layout::Parse("[a, -]", context->mesh());
      model.a.Materialize(context, DType::kF16, DType::kF16, {layout, layout});
      const std::vector<double> before = Cast(model.a.at_rest(), DType::kF64).FullTensor().ToVector<double>();
      model.a.SetGrad(Full(context, DType::kF16, {4, 6}, 1e4, layout));
      Muon muon({&model.a},
                {.weight_decay = 0, .products = DType::kF32, .groups = {{.path = "a", .matrix = "io"}}});
      muon.Step(0.5, Full(context, DType::kF32, {}, scale));
      values.push_back(Cast(model.a.at_rest(), DType::kF64).FullTensor().ToVector<double>());
      for (size_t i = 0; i < before.size(); ++i) EXPECT_LT(values.back()[i], before[i] - 0.05) << scale;
    }
    for (size_t i = 0; i < values[0].size(); ++i) EXPECT_NEAR(values[0][i], values[1][i], 1e-2);
  });
}

// An AutocastGuard is for the model's products.
TEST(MuonTest, ProductsDoNotFollowAnAutocastGuard) {
  OnMesh("a=2", [](const Context& context) {
    std::vector<std::vector<double>> values;
    for (const auto& autocast : {std::optional<DType>(), std::optional<DType>(DType::kBF16)}) {
      OptimizedModel model;
      model.Lay(context, Split::kFirst);
      Muon muon(model.AllParameters(), {.groups = {{.path = "matrix", .matrix = "io"}}});
      model.SetGradients(1);
      const AutocastGuard guard(context->state(), autocast);
      muon.Step(0.1);
      values.push_back(model.Values());
    }
    EXPECT_EQ(values[0], values[1]);
  });
}

}  // namespace
}  // namespace weft
