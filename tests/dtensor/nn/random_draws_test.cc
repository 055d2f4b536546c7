// Random draws of modules, and beside them.

#include <cmath>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/recompute.h"
#include "dtensor/context/fold_in_guard.h"
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

TEST(RandomDrawsTest, CallsUnderOtherNumbersDrawOthers) {
  std::vector<Tensor> expected;
  for (const char* mesh : {"", "a=2"}) {
    OnMesh(mesh, [&](const Context& context) {
      RankState& state = context->state();
      Net net;
      Materialize(net, context);
      const int num_axes = context->mesh().num_axes();
      const Layout layout = num_axes == 0 ? Layout(1, 0) : Layout(1, 1).WithShard(0, 0);
      const DTensor x = Full(context, DType::kF32, {64}, 1, layout);
      const auto draw = [&](uint64_t number) -> std::vector<Tensor> {
        const FoldInGuard fold(state, number);
        state.set_step(0);
        return {net(x).FullTensor(), RandomUniformLike(x).FullTensor(),
                RandomUniformLike(x, "noise").FullTensor()};
      };
      const std::vector<Tensor> plain = {net(x).FullTensor(), RandomUniformLike(x).FullTensor(),
                                         RandomUniformLike(x, "noise").FullTensor()};
      const std::vector<Tensor> none = draw(0), one = draw(1), again = draw(1), two = draw(2);
      if (num_axes == 0) expected = one;
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(SameBits(none[i], plain[i])) << i;
        EXPECT_FALSE(SameBits(one[i], plain[i])) << i;
        EXPECT_FALSE(SameBits(two[i], plain[i])) << i;
        EXPECT_FALSE(SameBits(two[i], one[i])) << i;
        EXPECT_TRUE(SameBits(again[i], one[i])) << i;
        EXPECT_TRUE(SameBits(one[i], expected[i])) << i << " on mesh '" << mesh << "'";
      }
    });
  }
}

// x is 1 and the net linear: its gradient is what it makes.
TEST(RandomDrawsTest, WhatIsRecomputedDrawsUnderForwardsNumber) {
  OnMesh("a=2", [](const Context& context) {
    Net net;
    Materialize(net, context);
    const DTensor x = Ones(context, DType::kF32, {64}).RequiresGrad();
    DTensor y;
    {
      const FoldInGuard fold(context->state(), 1);
      y = Recompute([&](const DTensors& in) -> DTensors { return {net(in[0])}; }, {x})[0];
    }
    EXPECT_FALSE(SameBits(net(x).ToLocal(), y.ToLocal()));
    Backward(Sum(y));
    EXPECT_TRUE(SameBits(x.grad().ToLocal(), y.ToLocal()));
  });
}

}  // namespace
}  // namespace weft
