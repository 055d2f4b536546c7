// Tensors from nothing: the same elements on every layout, and no more memory than the piece.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Context = IntrusivePtr<MeshContext>;

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<double> Elements(const DTensor& x) { return x.FullTensor().ToVector<double>(); }

struct Creation {
  std::string name;
  std::function<DTensor(const Context&, const Layout&)> make;
};

// Each of shape [5, 7] or [7].
std::vector<Creation> Creations() {
  return {
      {"zeros",
       [](const Context& c, const Layout& l) {
         return Zeros(c, DType::kF32, {5, 7}, l);
       }},
      {"ones",
       [](const Context& c, const Layout& l) {
         return Ones(c, DType::kBool, {5, 7}, l);
       }},
      {"full",
       [](const Context& c, const Layout& l) {
         return Full(c, DType::kI64, {5, 7}, -3, l);
       }},
      {"arange", [](const Context& c, const Layout& l) { return Arange(c, DType::kF64, 1, 8, 1, l); }},
      {"uniform",
       [](const Context& c, const Layout& l) {
         return RandomUniform(c, DType::kF32, {5, 7}, l, "u");
       }},
      {"uniform of the module",
       [](const Context& c, const Layout& l) {
         return RandomUniform(c, DType::kBF16, {5, 7}, l);
       }},
      {"normal",
       [](const Context& c, const Layout& l) {
         return RandomNormal(c, DType::kF64, {5, 7}, l, "n");
       }},
      {"bernoulli",
       [](const Context& c, const Layout& l) {
         return Bernoulli(c, DType::kBool, {5, 7}, 0.4, l);
       }},
      {"bernoulli of probabilities",
       [](const Context& c, const Layout& l) {
         return Bernoulli(RandomUniform(c, DType::kF32, {5, 7}, l, "p"), "b");
       }},
  };
}

TEST(CreationTest, SameElementsOnEveryLayout) {
  for (const Creation& creation : Creations()) {
    Tensor expected;
    OnMesh("", [&](const Context& context) {
      context->state().set_seed(42);
      expected = creation.make(context, Layout()).ToLocal();
    });
    OnMesh("a=2,b=2", [&](const Context& context) {
      context->state().set_seed(42);
      EXPECT_TRUE(creation.make(context, Layout()).layout().IsFullyReplicated()) << creation.name;
      for (const Layout& layout : AllLayouts(context->mesh(), expected.ndim(), {})) {
        context->state().ResetCallNumbers();
        const DTensor x = creation.make(context, layout);
        EXPECT_EQ(x.layout(), layout) << creation.name;
        EXPECT_TRUE(
            SameBits(x.ToLocal(), PieceOf(expected, layout, context->mesh(), context->world().rank())))
            << creation.name << " " << layout;
      }
    });
  }
}

// Were the whole made anywhere, the peak would tell.
TEST(CreationTest, OnlyThePieceIsMade) {
  OnMesh("a=4", [](const Context& context) {
    const Layout layout = Layout::Parse("[a, -]", context->mesh());
    const Shape shape = {4096, 64};
    const int64_t piece = 4096 / 4 * 64 * ItemSize(DType::kF32);
    for (const auto& make : std::vector<std::function<DTensor()>>{
             [&] { return Zeros(context, DType::kF32, shape, layout); },
             [&] { return RandomUniform(context, DType::kF32, shape, layout); },
             [&] { return RandomNormal(context, DType::kF32, shape, layout, "x"); },
             [&] { return Bernoulli(context, DType::kF32, shape, 0.5, layout); }}) {
      const AllocatorStats before = context->allocator()->stats();
      context->allocator()->ResetPeak();
      const DTensor x = make();
      EXPECT_EQ(x.ToLocal().num_bytes(), piece);
      EXPECT_EQ(context->allocator()->stats().peak_bytes - before.live_bytes, piece);
    }
  });
}

TEST(CreationTest, ArangeStepsUpAndDown) {
  OnMesh("a=2", [](const Context& context) {
    EXPECT_EQ(Elements(Arange(context, DType::kI32, 0, 5)), (std::vector<double>{0, 1, 2, 3, 4}));
    EXPECT_EQ(Elements(Arange(context, DType::kF32, 1, 2.1, 0.25)),
              (std::vector<double>{1, 1.25, 1.5, 1.75, 2}));
    EXPECT_EQ(Elements(Arange(context, DType::kI64, 5, -2, -3)), (std::vector<double>{5, 2, -1}));
    EXPECT_EQ(Arange(context, DType::kF32, 3, 3).shape(), Shape({0}));
    const DTensor split = Arange(context, DType::kI64, 10, 15, 1, Layout::Parse("[a]", context->mesh()));
    EXPECT_EQ(split.ToLocal().ToVector<int64_t>(), context->coordinate()[0] == 0
                                                       ? (std::vector<int64_t>{10, 11, 12})
                                                       : (std::vector<int64_t>{13, 14}));
    EXPECT_EQ(ErrorOf([&] { Arange(context, DType::kF32, 0, 5, -1); }),
              "Arange: no steps of -1 lead from 0 to 5");
    EXPECT_EQ(ErrorOf([&] { Arange(context, DType::kF32, 0, 5, 0); }),
              "Arange: no steps of 0 lead from 0 to 5");
    EXPECT_EQ(ErrorOf([&] { Arange(context, DType::kI32, 0, 5, 0.5); }),
              "Arange: expected whole numbers for i32, got 0 and steps of 0.5");
    EXPECT_EQ(ErrorOf([&] { Arange(context, DType::kBool, 0, 2); }),
              "Arange: expected a numeric dtype, got bool");
    for (const double step : {1e-20, 0x1p-63}) {
      EXPECT_EQ(ErrorOf([&] { Arange(context, DType::kF32, 0, 1, step); }),
                absl::StrCat("Arange: steps of ", step, " from 0 to 1 are more than a dim can have"));
    }
    EXPECT_EQ(ErrorOf([&] { Arange(context, DType::kF64, -1e308, 1e308); }),
              "Arange: steps of 1 from -1e+308 to 1e+308 are more than a dim can have");
  });
}

TEST(CreationTest, LikeATensorOnItsLayout) {
  OnMesh("a=2,b=2", [](const Context& context) {
    const Tensor full = RandomF64({5, 3}, 7);
    const DTensor split = Lay(context, full, "[b, -]");
    EXPECT_EQ(ZerosLike(split).ToString(), split.ToString());
    EXPECT_EQ(Elements(OnesLike(split)), std::vector<double>(15, 1));
    EXPECT_EQ(Elements(FullLike(split, -2)), std::vector<double>(15, -2));
    EXPECT_TRUE(SameBits(RandomUniformLike(split, "x").FullTensor(),
                         RandomUniform(context, DType::kF64, {5, 3}, {}, "x").ToLocal()));
    EXPECT_TRUE(SameBits(RandomNormalLike(split, "x").FullTensor(),
                         RandomNormal(context, DType::kF64, {5, 3}, {}, "x").ToLocal()));
    // A Partial tensor is no layout to create on.
    const DTensor partial = Lay(context, full, "[b, -] P{a}");
    EXPECT_EQ(OnesLike(partial).ToString(), split.ToString());
    EXPECT_EQ(Elements(OnesLike(partial)), std::vector<double>(15, 1));
  });
}

TEST(CreationTest, StreamsDependOnNameStepPathAndCall) {
  OnMesh("", [](const Context& context) {
    RankState& state = context->state();
    const auto draw = [&](absl::string_view stream) {
      return RandomUniform(context, DType::kF32, {64}, {}, stream).ToLocal();
    };
    const Tensor named = draw("x");
    EXPECT_TRUE(SameBits(draw("x"), named));
    EXPECT_FALSE(SameBits(draw("y"), named));
    const Tensor first = draw("");
    EXPECT_FALSE(SameBits(draw(""), first));
    state.ResetCallNumbers();
    EXPECT_TRUE(SameBits(draw(""), first));
    state.ResetCallNumbers();
    {
      const PathGuard path(state, state.PathId("blocks.0"));
      EXPECT_FALSE(SameBits(draw(""), first));
    }
    state.set_step(1);
    EXPECT_FALSE(SameBits(draw(""), first));
    EXPECT_FALSE(SameBits(draw("x"), named));
    state.set_step(0);
    state.set_seed(9);
    EXPECT_FALSE(SameBits(draw("x"), named));
  });
}

TEST(CreationTest, UniformsStayBelowOne) {
  OnMesh("", [](const Context& context) {
    const DTensor x = RandomUniform(context, DType::kBF16, {65536}, {}, "x");
    const DTensor y = RandomUniform(context, DType::kF16, {65536}, {}, "x");
    for (const DTensor& uniform : {x, y, RandomUniformLike(x, "x"), RandomUniformLike(y, "x")}) {
      const std::vector<double> values = Elements(uniform);
      // The greatest number below 1.
      const double last = uniform.dtype() == DType::kBF16 ? 1 - 0x1p-8 : 1 - 0x1p-11;
      EXPECT_EQ(*std::max_element(values.begin(), values.end()), last) << uniform.ToString();
      EXPECT_GE(*std::min_element(values.begin(), values.end()), 0) << uniform.ToString();
    }
  });
}

// A call without a name and a dropout never share bits.
TEST(CreationTest, CallsCountTogetherWithDropout) {
  OnMesh("", [](const Context& context) {
    const DTensor x = Ones(context, DType::kF32, {64});
    const Tensor second = [&] {
      context->state().ResetCallNumbers();
      Dropout(x, 0.5);
      return Bernoulli(context, DType::kF32, {64}, 0.5).ToLocal();
    }();
    context->state().ResetCallNumbers();
    EXPECT_FALSE(SameBits(Bernoulli(context, DType::kF32, {64}, 0.5).ToLocal(), second));
    EXPECT_TRUE(SameBits(Bernoulli(context, DType::kF32, {64}, 0.5).ToLocal(), second));
  });
}

TEST(CreationTest, MisuseIsNamed) {
  OnMesh("a=2", [](const Context& context) {
    const Layout partial = Layout::Parse("[-] P{a}", context->mesh());
    EXPECT_THAT(ErrorOf([&] { Zeros(context, DType::kF32, {3}, partial); }),
                HasSubstr("fill: cannot create a Partial tensor"));
    EXPECT_EQ(ErrorOf([&] { RandomUniform(context, DType::kI32, {3}); }),
              "random_uniform: expected a floating dtype, got i32[3]");
    EXPECT_EQ(ErrorOf([&] { Bernoulli(context, DType::kF32, {3}, 2); }),
              "bernoulli: expected a probability in [0, 1], got 2");
    const DTensor whole = Full(context, DType::kI32, {3}, 1);
    EXPECT_EQ(ErrorOf([&] { NumberLike(whole, 0.5); }),
              "i32 cannot hold the number 0.5 beside i32[3] [-]; convert the tensor first");
    EXPECT_EQ(ErrorOf([&] { NumberLike(whole, 2147483648.0); }),
              "i32 cannot hold the number 2.14748e+09 beside i32[3] [-]; convert the tensor first");
    EXPECT_EQ(NumberLike(whole, -2147483648.0).Item(), -2147483648.0);
    EXPECT_THAT(ErrorOf([&] { NumberLike(Full(context, DType::kU8, {3}, 1), -1); }),
                HasSubstr("u8 cannot hold"));
    EXPECT_THAT(ErrorOf([&] { NumberLike(Full(context, DType::kBool, {3}, 1), 2); }),
                HasSubstr("bool cannot hold"));
    const DTensor half = Full(context, DType::kF16, {3}, 1);
    EXPECT_EQ(ErrorOf([&] { NumberLike(half, -1e9); }),
              "f16 cannot hold the number -1e+09 beside f16[3] [-]; convert the tensor first");
    EXPECT_THAT(ErrorOf([&] { NumberLike(half, 65520); }), HasSubstr("f16 cannot hold"));
    EXPECT_EQ(NumberLike(half, 65519).Item(), 65504);  // rounded
    EXPECT_EQ(NumberLike(half, -kInf).Item(), -kInf);
    EXPECT_TRUE(std::isnan(NumberLike(half, std::nan("")).Item()));
    EXPECT_THAT(ErrorOf([&] { NumberLike(Full(context, DType::kBF16, {3}, 1), 3.4e38); }),
                HasSubstr("bf16 cannot hold"));
    EXPECT_THAT(ErrorOf([&] { NumberLike(Full(context, DType::kF32, {3}, 1), 3.5e38); }),
                HasSubstr("f32 cannot hold"));
    EXPECT_EQ(NumberLike(Full(context, DType::kF64, {3}, 1), 1e308).Item(), 1e308);
  });
}

}  // namespace
}  // namespace weft
