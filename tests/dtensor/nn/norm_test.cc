#include "dtensor/nn/norm.h"

#include <cmath>

#include "dtensor/functions.h"
#include "gtest/gtest.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

// Rows of `d` with their mean (of LayerNorm) taken off, divided by their root mean square.
std::vector<double> NaiveNorm(std::vector<double> x, size_t d, bool centered, double eps) {
  for (size_t row = 0; row < x.size(); row += d) {
    double mean = 0, square = 0;
    for (size_t i = row; i < row + d; ++i) mean += x[i] / static_cast<double>(d);
    for (size_t i = row; i < row + d; ++i) {
      if (centered) x[i] -= mean;
      square += x[i] * x[i] / static_cast<double>(d);
    }
    for (size_t i = row; i < row + d; ++i) x[i] /= std::sqrt(square + eps);
  }
  return x;
}

TEST(NormTest, StartAsThePlainNormalization) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    LayerNorm layer_norm(&root, "ln", 5);
    RmsNorm rms_norm(&root, "rms", 5, /*eps=*/0.1);
    Materialize(root, context, {.dtype = DType::kF64});
    const Tensor x = RandomF64({2, 3, 5}, 1);
    const DTensor input = Lay(context, x, "[-, -, -]");
    const auto expected = [&](bool centered, double eps) {
      return Tensor::FromValues<double>({2, 3, 5}, NaiveNorm(x.ToVector<double>(), 5, centered, eps));
    };
    EXPECT_TRUE(AllClose(layer_norm(input).ToLocal(), expected(true, 1e-5), 1e-13));
    EXPECT_TRUE(AllClose(rms_norm(input).ToLocal(), expected(false, 0.1), 1e-13));
  });
}

TEST(NormTest, ScaleAndShift) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    Module root;
    LayerNorm layer_norm(&root, "ln", 2);
    Materialize(root, context, {.dtype = DType::kF64});
    layer_norm.weight.Load(Lay(context, Tensor::FromValues<double>({2}, {3, 5}), "[-]"));
    layer_norm.bias.Load(Lay(context, Tensor::FromValues<double>({2}, {10, 20}), "[-]"));
    const DTensor x = Lay(context, Tensor::FromValues<double>({1, 2}, {-4, 4}), "[-, -]");
    EXPECT_TRUE(AllClose(layer_norm(x).ToLocal(), Tensor::FromValues<double>({1, 2}, {7, 25}), 1e-5));
  });
}

}  // namespace
}  // namespace weft
