#include "dtensor/nn/mlp.h"

#include <cmath>

#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

double Gelu(double v) { return 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))); }

TEST(MlpTest, IsTheNaiveLoops) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    Mlp mlp(&root, "mlp", /*dim=*/3, /*hidden=*/5, Initializer::Normal(0, 1));
    Materialize(root, context, {.dtype = DType::kF64});
    mlp.up.weight.Load(Lay(context, RandomF64({3, 5}, 2), "[-, -]"));
    mlp.up.bias->Load(Lay(context, RandomF64({5}, 3), "[-]"));
    mlp.down.bias->Load(Lay(context, RandomF64({3}, 4), "[-]"));
    const std::vector<double> x = RandomF64({2, 3}, 1).ToVector<double>();
    const std::vector<double> up = mlp.up.weight.at_rest().ToLocal().ToVector<double>();
    const std::vector<double> up_bias = mlp.up.bias->at_rest().ToLocal().ToVector<double>();
    const std::vector<double> down = mlp.down.weight.at_rest().ToLocal().ToVector<double>();
    std::vector<double> expected;
    for (int row = 0; row < 2; ++row) {
      std::vector<double> y = mlp.down.bias->at_rest().ToLocal().ToVector<double>();
      for (int h = 0; h < 5; ++h) {
        double hidden = up_bias[h];
        for (int d = 0; d < 3; ++d) hidden += x[row * 3 + d] * up[d * 5 + h];
        for (int d = 0; d < 3; ++d) y[d] += Gelu(hidden) * down[h * 3 + d];
      }
      expected.insert(expected.end(), y.begin(), y.end());
    }
    const DTensor y = mlp(Lay(context, RandomF64({2, 3}, 1), "[-, -]"));
    EXPECT_TRUE(AllClose(y.ToLocal(), Tensor::FromValues<double>({2, 3}, expected), 1e-14));
  });
}

}  // namespace
}  // namespace weft
