// Random draws of modules, and beside them.

#include <cmath>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "gtest/gtest.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using Context = IntrusivePtr<MeshContext>;

// A root that draws under its own path, which is none.
class Net : public Module {
 protected:
  DTensor Forward(const DTensor& x) override { return Dropout(x, 0.5); }
};

// Two batches of noise of a GAN, or two steps of a diffusion: a model is called in between. A step that is done again has the
// same.
TEST(RandomDrawsTest, DrawsOutsideGoOnBesideAModelsCalls) {
  OnMesh("a=2", [](const Context& context) {
    Net net;
    Materialize(net, context);
    const DTensor x = Ones(context, DType::kF32, {64});
    const auto step = [&](uint64_t number) {
      context->state().set_step(number);
      std::vector<Tensor> drawn;
      for (int i = 0; i < 3; ++i) {
        drawn.push_back(RandomNormal(context, DType::kF32, {64}).ToLocal());
        net(x);
      }
      return drawn;
    };
    const std::vector<Tensor> first = step(1), second = step(2), again = step(1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_FALSE(SameBits(first[i], first[(i + 1) % 3])) << i;
      EXPECT_FALSE(SameBits(first[i], second[i])) << i;
      EXPECT_TRUE(SameBits(first[i], again[i])) << i;
    }
  });
}

// Of a denoiser: which elements its dropout keeps says nothing of the noise. Were the bits the same, it would keep those
// above 1/2, a correlation of 0.87.
TEST(RandomDrawsTest, NoiseIsIndependentOfTheModelsDropout) {
  OnMesh("a=2", [](const Context& context) {
    Net net;
    Materialize(net, context);
    const DTensor x = Ones(context, DType::kF64, {4096});
    const std::vector<double> noise = RandomUniformLike(x).ToLocal().ToVector<double>();
    const std::vector<double> mask = net(x).ToLocal().ToVector<double>();  // 2 or 0
    double product = 0, noises = 0, masks = 0;
    for (size_t i = 0; i < noise.size(); ++i) {
      product += (noise[i] - 0.5) * (mask[i] - 1);
      noises += (noise[i] - 0.5) * (noise[i] - 0.5);
      masks += (mask[i] - 1) * (mask[i] - 1);
    }
    EXPECT_LT(std::abs(product) / std::sqrt(noises * masks), 0.1);
  });
}

}  // namespace
}  // namespace weft
