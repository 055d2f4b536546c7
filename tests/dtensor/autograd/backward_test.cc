#include "dtensor/autograd/backward.h"

#include <random>

#include "dtensor/context/propagation_cache.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/autograd/functions_to_differentiate.h"
#include "tests/dtensor/autograd/within_backward.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
// The function's value on one device, with element `index` of operand `moved` shifted by `step`.
double ValueAt(const IntrusivePtr<MeshContext>& context, const Function& function, size_t moved,
               int64_t index, double step) {
  const NoGradGuard no_grad(context->state());
  Operands operands;
  for (size_t i = 0; i < function.operands.size(); ++i) {
    const Tensor copy = CloneTensor(function.operands[i], context->allocator());
    if (i == moved) copy.data<double>()[index] += step;
    operands.push_back(Lay(context, copy, Layout(copy.ndim(), 0)));
  }
  return function.call(operands).Item();
}

std::vector<Tensor> CentralDifferences(const Function& function) {
  std::vector<Tensor> gradients;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < function.operands.size(); ++i) {
      std::vector<double> gradient(function.operands[i].num_elements());
      for (size_t j = 0; j < gradient.size(); ++j) {
        const int64_t index = static_cast<int64_t>(j);
        gradient[j] =
            (ValueAt(context, function, i, index, kStep) - ValueAt(context, function, i, index, -kStep)) /
            (2 * kStep);
      }
      gradients.push_back(Tensor::FromValues<double>(function.operands[i].shape(), gradient));
    }
  });
  return gradients;
}

TEST(AutogradTest, GradientsOfCompositesAreTheirDifferencesUnderAnyLayouts) {
  for (const Function& function : Functions()) {
    const std::vector<Tensor> expected = CentralDifferences(function);
    std::vector<Tensor> one_device;
    for (const char* mesh : {"", "a=2", "a=2,b=2"}) {
      OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
        std::mt19937_64 random(3);
        for (int draw = 0; draw < (context->mesh().num_axes() == 0 ? 1 : 10); ++draw) {
          Operands leaves;
          std::string what = function.name;
          for (const Tensor& operand : function.operands) {
            const Layout layout = RandomLayout(context->mesh(), operand.ndim(), random, /*partial=*/false);
            leaves.push_back(Lay(context, operand, layout).RequiresGrad());
            absl::StrAppend(&what, " ", leaves.back().ToString());
          }
          Backward(function.call(leaves));
          for (size_t i = 0; i < leaves.size(); ++i) {
            const DTensor gradient = leaves[i].grad();
            ASSERT_TRUE(gradient.defined()) << what << ", operand " << i;
            ASSERT_EQ(gradient.layout(), leaves[i].layout()) << what << ", operand " << i;
            const Tensor full = gradient.FullTensor();
            ASSERT_TRUE(AllClose(full, expected[i], 1e-7)) << what << ", operand " << i;
            if (context->mesh().num_axes() == 0) {
              one_device.push_back(full);
            } else {
              ASSERT_TRUE(AllClose(full, one_device[i], 1e-12)) << what << ", operand " << i;
            }
          }
        }
      });
    }
  }
}

TEST(AutogradTest, SecondPassesAddToTheLeaf) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    Backward(Sum(Square(x)));
    Backward(Sum(3.0 * x));
    EXPECT_TRUE(
        AllClose(x.grad().FullTensor(), (2.0 * x + Full(context, DType::kF64, {4}, 3)).FullTensor(), 1e-15));
  });
}

TEST(AutogradTest, AHistoryIsUsedOnce) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    const DTensor y = Square(x);
    const DTensor loss = Sum(y);
    Backward(loss);
    EXPECT_EQ(ErrorOf([&] { Backward(loss); }),
              "Backward: the history of a result of sum was used up by an earlier Backward; to run it twice, "
              "let the first keep it: "
              "{.retain_graph = true}");
    // Also where another result shares a part of it.
    EXPECT_EQ(ErrorOf([&] { Backward(Mean(y)); }),
              "Backward: the history of a result of square was used up by an earlier Backward; to run it "
              "twice, let the first keep it: "
              "{.retain_graph = true}");
  });
}

TEST(AutogradTest, UnusedOutputsHaveNoGradient) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({3, 4}, 1), "[-, a]").RequiresGrad();
    const std::vector<DTensor> rows = Unbind(x, 0);
    Backward(Sum(rows[2] * rows[0]));
    const std::vector<double> value = x.FullTensor().ToVector<double>();
    std::vector<double> expected(12, 0);
    for (int i = 0; i < 4; ++i) {
      expected[i] = value[8 + i];
      expected[8 + i] = value[i];
    }
    EXPECT_EQ(x.grad().FullTensor().ToVector<double>(), expected);
  });
}

TEST(AutogradTest, NoGradGuardAndDetachStopHistory) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    {
      const NoGradGuard no_grad(context->state());
      EXPECT_FALSE(Square(x).requires_grad());
      EXPECT_FALSE(x.Redistribute(Layout(1, 1)).requires_grad());
    }
    Backward(Sum(x * Square(x).Detach()));  // d/dx x c = c
    EXPECT_TRUE(SameBits(x.grad().FullTensor(), Square(x).FullTensor()));
    EXPECT_THAT(ErrorOf([&] { Backward(Sum(x.Detach())); }),
                HasSubstr("f64[] [] P{a} depends on no tensor that wants a gradient"));
  });
}

TEST(AutogradTest, SeedsOfResultsThatAreNotScalars) {
  const Tensor seed = RandomF64({4, 3}, 9);
  for (const char* seed_layout : {"[a, -]", "[-, a]", "[-, -]", "[-, -] P{a}"}) {
    OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
      const DTensor x = Lay(context, RandomF64({4, 3}, 1), "[a, -]").RequiresGrad();
      Backward(Square(x), Lay(context, seed, seed_layout));
      EXPECT_EQ(LayoutText(x.grad()), "[a, -]");
      const Tensor expected = (2.0 * x * Lay(context, seed, "[a, -]")).FullTensor();
      EXPECT_TRUE(AllClose(x.grad().FullTensor(), expected, 1e-14)) << seed_layout;
    });
  }
}

TEST(AutogradTest, Misuse) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({4}, 1), "[a]").RequiresGrad();
    EXPECT_EQ(
        ErrorOf([&] { Backward(Square(x)); }),
        "Backward: expected a loss of one element, got f64[4] [a]; pass a seed of its shape to differentiate "
        "something else");
    EXPECT_EQ(ErrorOf([&] { Backward(Square(x), Full(context, DType::kF64, {3}, 1)); }),
              "Backward: the seed is f64[3], expected f64[4]");
    EXPECT_EQ(ErrorOf([&] { Backward(Square(x), Full(context, DType::kF32, {4}, 1)); }),
              "Backward: the seed is f32[4], expected f64[4]");
    const DTensor elsewhere = Full(Bind(context, DeviceMesh::Parse("b=2")), DType::kF64, {4}, 1);
    EXPECT_EQ(ErrorOf([&] { Backward(x + 1.0, elsewhere); }),
              "Backward: the seed lies on mesh (b=2), expected mesh (a=2)");
    EXPECT_FALSE(x.grad().defined());
    EXPECT_EQ(ErrorOf([&] { Backward(DTensor()); }),
              "Backward: undefined depends on no tensor that wants a gradient");
    EXPECT_TRUE(context->state().grad_enabled());  // guards are gone after an error
  });
}

// What is added to a gradient in place is what Add would give, for sizes around a vector's, and nobody who
// holds the gradient sees it.
TEST(AutogradTest, GradientsAddUpInPlaceUnlessTheyAreHeld) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t size : {0, 1, 5, 16, 17, 40001}) {
      OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
        const auto term = [&](int seed) {
          const Tensor full = RandomF64({size}, seed);
          return Lay(context, CastTensor(full, dtype, context->allocator()), "[a]");
        };
        const DTensor x = term(1).RequiresGrad(), b = term(2), c = term(3), seed = term(4);
        const auto differentiate = [&](const DTensor& factor) { Backward(Mul(x, factor), seed); };
        differentiate(b);
        const void* const place = x.grad().ToLocal().data();
        differentiate(c);
        EXPECT_EQ(x.grad().ToLocal().data(), place);
        const DTensor expected = Add(Mul(seed, b), Mul(seed, c));
        EXPECT_TRUE(SameBits(x.grad().ToLocal(), expected.ToLocal())) << DTypeName(dtype) << " " << size;

        const DTensor held = x.grad();
        differentiate(b);
        EXPECT_NE(x.grad().ToLocal().data(), place);
        EXPECT_TRUE(SameBits(held.ToLocal(), expected.ToLocal()));
        const Tensor held_piece = x.grad().ToLocal();
        const Tensor before = CloneTensor(held_piece, context->allocator());
        differentiate(c);
        EXPECT_TRUE(SameBits(held_piece, before));
      });
    }
  }
}

// The gradient of a sum's operands is one tensor, passed on: here the seed itself.
TEST(AutogradTest, AGradientThatIsPassedOnIsNotWrittenTo) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const Tensor full_seed = RandomF64({6}, 3);
    const DTensor x = Lay(context, RandomF64({6}, 1), "[a]").RequiresGrad();
    const DTensor y = Lay(context, RandomF64({6}, 2), "[a]").RequiresGrad();
    const DTensor seed = Lay(context, full_seed, "[a]");
    Backward(Add(Add(x, y), Add(x, x)), seed);
    Backward(Reshape(Add(x, y), {2, 3}), Reshape(seed, {2, 3}));
    EXPECT_TRUE(SameBits(seed.FullTensor(), full_seed));
    EXPECT_TRUE(AllClose(x.grad().FullTensor(), (4.0 * seed).FullTensor(), 1e-15));
    EXPECT_TRUE(AllClose(y.grad().FullTensor(), (2.0 * seed).FullTensor(), 1e-15));
  });
}

// A node that differentiates on its own: the inner pass reaches a leaf and a result that the outer one counts
// on.
TEST(AutogradTest, APassWithinAPass) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({5}, 1), "[-]").RequiresGrad();
    const DTensor factor = Lay(context, RandomF64({5}, 2), "[-]");
    const DTensor inner = Sum(x * factor);
    const DTensor y = WithinBackward(x, [&] { Backward(inner); });
    Backward(Sum(y + 2.0 * x + Square(x)));  // 1 + 2 + 2 x, and factor from within
    const DTensor expected = 2.0 * x.Detach() + (factor + 3.0);
    EXPECT_TRUE(AllClose(x.grad().FullTensor(), expected.FullTensor(), 1e-14));
  });
}

// A cache of one plan drops every plan before its call is differentiated: what is recorded keeps its own.
TEST(AutogradTest, RecordedCallsOutliveTheirPlansInTheCache) {
  for (const Function& f : Functions()) {
    const auto gradients = [&](const IntrusivePtr<MeshContext>& context) {
      Operands leaves;
      for (const Tensor& operand : f.operands) {
        Layout split(operand.ndim(), 1);
        if (operand.ndim() > 0) split = split.WithShard(0, operand.ndim() - 1);
        leaves.push_back(Lay(context, operand, split).RequiresGrad());
      }
      Backward(f.call(leaves));
      std::vector<Tensor> result;
      for (const DTensor& leaf : leaves) result.push_back(leaf.grad().FullTensor());
      return result;
    };
    OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
      const std::vector<Tensor> expected = gradients(context);
      context->cache() = PropagationCache(/*capacity=*/1);
      const std::vector<Tensor> got = gradients(context);
      EXPECT_GT(context->cache().stats().evictions, 0);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(SameBits(got[i], expected[i])) << f.name << " " << i;
    });
  }
}

// As many nested destructors would overflow the stack.
TEST(AutogradTest, ALongHistoryEndsWithoutRecursion) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Full(context, DType::kF64, {}, 1).RequiresGrad();
    {
      DTensor y = x;
      for (int i = 0; i < 200000; ++i) y = y + x;
      Backward(y);
      EXPECT_EQ(x.grad().Item(), 200001);
    }
    DTensor unused = x;  // never differentiated: what is saved is still there
    for (int i = 0; i < 100000; ++i) unused = unused * x;
    EXPECT_EQ(unused.Item(), 1);
  });
}

}  // namespace
}  // namespace weft
