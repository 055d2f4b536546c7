// Gradients of gradients against central differences of gradients, in f64.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/autograd/local_function.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "runtime/tensor/copy.h"
#include "tests/dtensor/autograd/functions_to_differentiate.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;

// What the refusal of Conv2d's gradient names: x [n, c, h, w], kernel [o, c, i, j], zeros around, every second row.
DTensor ComposedConv2d(const DTensor& x, const DTensor& kernel, int64_t stride, int64_t padding) {
  const DTensor padded = Pad(x, {{0, 0}, {0, 0}, {padding, padding}, {padding, padding}});
  DTensor y;
  for (int64_t i = 0; i < kernel.shape()[2]; ++i) {
    for (int64_t j = 0; j < kernel.shape()[3]; ++j) {
      const auto along = [&](int64_t begin, int64_t extent, int64_t kernel_extent) {
        return SliceRange{.start = begin, .stop = begin + extent - kernel_extent + 1, .step = stride};
      };
      const DTensor window = Slice(padded, {{},
                                            {},
                                            along(i, padded.shape()[2], kernel.shape()[2]),
                                            along(j, padded.shape()[3], kernel.shape()[3])});
      const DTensor term = Contract(window, "nchw", Select(Select(kernel, 3, j), 2, i), "oc", "nohw");
      y = y.defined() ? y + term : term;
    }
  }
  return y;
}

// The composites of backward_test but attention, whose fused gradient has none; its unfused form, and a convolution's;
// and what they do not have of activations, reductions and powers.
std::vector<Function> TwiceDifferentiable() {
  std::vector<Function> functions;
  for (Function& function : Functions()) {
    if (std::string(function.name) != "attention") functions.push_back(std::move(function));
  }
  functions.push_back({"composed attention",
                       {RandomF64({2, 3, 4}, 1), RandomF64({2, 3, 4}, 2), RandomF64({2, 3, 4}, 3)},
                       [](const Operands& x) {
                         const DTensor scores = Softmax(Contract(x[0], "bse", x[1], "bte", "bst") * 0.5);
                         return Sum(Square(Contract(scores, "bst", x[2], "bte", "bse")));
                       }});
  functions.push_back({"composed convolution",
                       {RandomF64({2, 2, 4, 5}, 1), RandomF64({3, 2, 3, 2}, 2)},
                       [](const Operands& x) { return Sum(Square(ComposedConv2d(x[0], x[1], 2, 1))); }});
  functions.push_back({"linear",
                       {RandomF64({3, 4}, 1), RandomF64({4, 5}, 2), RandomF64({5}, 3), RandomF64({5, 4}, 4),
                        RandomF64({4}, 5)},
                       [](const Operands& x) {
                         const DTensor h = Contract(x[0], "bd", x[1], "dn", "bn", x[2]);
                         return Sum(Square(GeluContract(h, "bn", x[3], "nd", "bd", x[4])));
                       }});
  functions.push_back(
      {"activations", {RandomF64({3, 4}, 1), RandomF64({3, 4}, 2, 0.3, 1)}, [](const Operands& x) {
         return Sum(Silu(x[0]) * Sigmoid(x[0]) + Erf(x[0]) * GeluExact(x[0]) + Relu(x[1]) * x[1] +
                    Abs(x[1]) * Sin(x[0]) + Square(LogSoftmax(x[0])));
       }});
  functions.push_back(
      {"powers", {RandomF64({3, 4}, 1, 0.5, 2), RandomF64({4}, 2, 0.5, 2)}, [](const Operands& x) {
         return Sum(Pow(x[0], x[1]) + Pow(x[0], 2.5) + Rsqrt(x[0]));
       }});
  functions.push_back({"reductions", {RandomF64({3, 4}, 1, 0.5, 2)}, [](const Operands& x) {
                         return Sum(Square(Var(x[0], {1})) + Std(x[0], {1}) * LogSumExp(x[0], {1}) +
                                    Norm(x[0], 2, {1}) + Square(Max(x[0], {1})) +
                                    Norm(x[0], 3, {1}) * Mean(x[0], {1}));
                       }});
  return functions;
}

// The gradients of `function` at its operands, operand `moved` shifted by `step` times `along`.
std::vector<Tensor> GradientsAt(const IntrusivePtr<MeshContext>& context, const Function& function,
                                const std::vector<Tensor>& along, double step) {
  Operands leaves;
  for (size_t i = 0; i < function.operands.size(); ++i) {
    const Tensor copy = CloneTensor(function.operands[i], context->allocator());
    for (int64_t j = 0; j < copy.num_elements(); ++j)
      copy.data<double>()[j] += step * along[i].data<double>()[j];
    leaves.push_back(Lay(context, copy, Layout(copy.ndim(), 0)).RequiresGrad());
  }
  std::vector<Tensor> gradients;
  for (const DTensor& gradient : Grad({function.call(leaves)}, leaves))
    gradients.push_back(gradient.FullTensor());
  return gradients;
}

// The Hessian times `along`, from differences of gradients.
std::vector<Tensor> Differences(const Function& function, const std::vector<Tensor>& along) {
  std::vector<Tensor> products;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) {
    constexpr double kStep = 1e-5;
    const std::vector<Tensor> above = GradientsAt(context, function, along, kStep);
    const std::vector<Tensor> below = GradientsAt(context, function, along, -kStep);
    for (size_t i = 0; i < above.size(); ++i) {
      std::vector<double> product = above[i].ToVector<double>();  // of views, too
      const std::vector<double> subtrahend = below[i].ToVector<double>();
      for (size_t j = 0; j < product.size(); ++j) product[j] = (product[j] - subtrahend[j]) / (2 * kStep);
      products.push_back(Tensor::FromValues<double>(above[i].shape(), product));
    }
  });
  return products;
}

TEST(GradientsOfGradientsTest, HessianTimesVectorUnderAnyLayouts) {
  for (const Function& function : TwiceDifferentiable()) {
    std::vector<Tensor> along;
    for (size_t i = 0; i < function.operands.size(); ++i) {
      along.push_back(RandomF64(function.operands[i].shape(), 50 + i));
    }
    const std::vector<Tensor> expected = Differences(function, along);
    for (const char* mesh : {"", "a=2", "a=2,b=2"}) {
      OnMesh(mesh, [&](const IntrusivePtr<MeshContext>& context) {
        std::mt19937_64 random(5);
        for (int draw = 0; draw < (context->mesh().num_axes() == 0 ? 1 : 4); ++draw) {
          Operands leaves, vectors;
          std::string what = function.name;
          for (size_t i = 0; i < function.operands.size(); ++i) {
            const Tensor& operand = function.operands[i];
            const Layout layout = RandomLayout(context->mesh(), operand.ndim(), random, /*partial=*/false);
            leaves.push_back(Lay(context, operand, layout).RequiresGrad());
            vectors.push_back(Lay(context, along[i], layout));
            absl::StrAppend(&what, " ", leaves.back().ToString());
          }
          const DTensor loss = function.call(leaves);
          const std::vector<DTensor> gradients = Grad({loss}, leaves, {.create_graph = true});
          const std::vector<DTensor> products =
              Grad(gradients, leaves, {.seeds = vectors, .allow_unused = true});
          for (size_t i = 0; i < leaves.size(); ++i) {
            if (!products[i].defined()) {  // a linear operand that nothing else depends on
              for (double value : expected[i].ToVector<double>()) EXPECT_NEAR(value, 0, 1e-7) << what;
              continue;
            }
            ASSERT_EQ(products[i].layout(), leaves[i].layout()) << what << ", operand " << i;
            ASSERT_TRUE(AllClose(products[i].FullTensor(), expected[i], 1e-6)) << what << ", operand " << i;
            EXPECT_FALSE(leaves[i].grad().defined());
          }
        }
      });
    }
  }
}

// sum x^4: 4 x^3, 12 x^2, 24 x, 24.
TEST(GradientsOfGradientsTest, AsOftenAsOneLikes) {
  OnMesh("a=2", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({5}, 1), "[a]").RequiresGrad();
    DTensor result = Sum(Square(Square(x)));
    for (const double factor : {4.0, 12.0, 24.0}) {
      result = Sum(Grad({result}, {x}, {.create_graph = true})[0]);
      const double power = factor == 4 ? 3 : factor == 12 ? 2 : 1;
      EXPECT_NEAR(result.Item(), (factor * Sum(Pow(x.Detach(), power))).Item(), 1e-12);
    }
    Backward(result);
    EXPECT_EQ(x.grad().FullTensor().ToVector<double>(), std::vector<double>(5, 24));
  });
}

// a^b log^2 a is 0 at a base of 0, in every dtype.
TEST(GradientsOfGradientsTest, APowersExponentAtABaseOfZero) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
      const DTensor base = Lay(context, FromDoubles(dtype, {2}, {0, 1}), "[-]");
      const DTensor exponent = Lay(context, FromDoubles(dtype, {2}, {2, 2}), "[-]").RequiresGrad();
      const DTensor first = Grad({Sum(Pow(base, exponent))}, {exponent}, {.create_graph = true})[0];
      const DTensor second = Grad({Sum(first)}, {exponent})[0];
      EXPECT_EQ(second.FullTensor().ToVector<double>(), (std::vector<double>{0, 0})) << dtype;
    }
  });
}

// All derivatives of x^0 are 0, and of x^1 from the second on: at x of 0 too, and where x^-2 is infinite.
TEST(GradientsOfGradientsTest, PowersWithConstantDerivativesAtZero) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
      const DTensor x = Lay(context, FromDoubles(dtype, {3}, {0, 0x1p-20, 2}), "[-]").RequiresGrad();
      // 2 x + 1, 2, 0.
      DTensor result = Sum(Pow(x, 0.0) + Pow(x, 1.0) + Pow(x, 2.0));
      result = Sum(Grad({result}, {x}, {.create_graph = true})[0]);
      const DTensor second = Grad({result}, {x}, {.create_graph = true})[0];
      EXPECT_EQ(second.FullTensor().ToVector<double>(), std::vector<double>(3, 2)) << dtype;
      const DTensor third = Grad({Sum(second)}, {x})[0];
      EXPECT_EQ(third.FullTensor().ToVector<double>(), std::vector<double>(3, 0)) << dtype;
    }
  });
}

// Of a row of nothing but -inf all derivatives are 0; of shares p, the second are p_i (d_ij - p_j).
TEST(GradientsOfGradientsTest, ALogSumExpOfNothing) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const char* layout : {"[-, -]", "[a, -]", "[-, a]"}) {
    OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
      const Tensor values = Tensor::FromValues<double>({2, 2}, {-kInf, -kInf, 1, 1});
      const DTensor x = Lay(context, values, layout).RequiresGrad();
      const DTensor first = Grad({Sum(LogSumExp(x, {1}))}, {x}, {.create_graph = true})[0];
      const std::vector<DTensor> seeds = {
          Lay(context, Tensor::FromValues<double>({2, 2}, {1, 0, 1, 0}), layout)};
      const DTensor second = Grad({first}, {x}, {.seeds = seeds})[0];
      EXPECT_TRUE(
          AllClose(second.FullTensor(), Tensor::FromValues<double>({2, 2}, {0, 0, 0.25, -0.25}), 1e-14))
          << layout;
    });
  }
}

// Where a norm or a standard deviation is 0 its gradient is 0, and so are all derivatives of that.
TEST(GradientsOfGradientsTest, NormsAndDeviationsThatAreZero) {
  struct Case {
    std::function<DTensor(const DTensor&)> statistic;
    std::vector<double> row;
    std::vector<double> product;  // of the row's Hessian and (1, 0, 0)
  };
  std::vector<Case> cases = {
      {[](const DTensor& x) { return Std(x, {1}); }, {-1, 0, 1}, {1.0 / 12, -1.0 / 6, 1.0 / 12}}};
  for (const double p : {1.5, 2.0, 2.5}) {
    // Of n equal numbers beside zeros (p - 1) n^(1 / p - 1) (d_ij - 1 / n); n is 2.
    const double half = (p - 1) * std::pow(2, 1 / p - 1) / 2;
    cases.push_back({[p](const DTensor& x) { return Norm(x, p, {1}); }, {1, 1, 0}, {half, -half, 0}});
  }
  // Three equal numbers above a row.
  const auto above = [](double number, const std::vector<double>& row) {
    std::vector<double> values(3, number);
    values.insert(values.end(), row.begin(), row.end());
    return Tensor::FromValues<double>({2, 3}, values);
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    for (const char* layout : {"[-, -]", "[a, -]", "[-, a]"}) {
      OnMesh("a=2", [&](const IntrusivePtr<MeshContext>& context) {
        const DTensor x = Lay(context, above(0, cases[i].row), layout).RequiresGrad();
        const DTensor first = Grad({Sum(cases[i].statistic(x))}, {x}, {.create_graph = true})[0];
        // Infinite ones, as beside the root of a gradient that is 0.
        for (const double seed : {1.0, std::numeric_limits<double>::infinity()}) {
          const std::vector<DTensor> seeds = {Lay(context, above(seed, {1, 0, 0}), layout)};
          const DTensor second = Grad({first}, {x}, {.seeds = seeds, .create_graph = true})[0];
          EXPECT_TRUE(AllClose(second.FullTensor(), above(0, cases[i].product), 1e-12))
              << "case " << i << ", " << layout << ", seed " << seed;
          const DTensor third = Grad({Sum(Square(second))}, {x}, {.retain_graph = true})[0];
          const std::vector<double> elements = third.FullTensor().ToVector<double>();
          for (int j = 0; j < 3; ++j) EXPECT_EQ(elements[j], 0) << "case " << i << ", " << layout;
        }
      });
    }
  }
}

// p_i (v_i - sum p v) in each row, and 0 where the target is ignored: also by a number that has no negative, is no
// double, or is none of the targets' dtype.
TEST(GradientsOfGradientsTest, CrossEntropyOfAnyIgnoreIndex) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const auto expect = [&](const Tensor& targets, int64_t ignore_index, bool ignores) {
      const DTensor logits = Lay(context, RandomF64({3, 4}, 1), "[-, -]").RequiresGrad();
      const DTensor v = Lay(context, RandomF64({3, 4}, 2), "[-, -]");
      const DTensor loss =
          CrossEntropy(logits, Lay(context, targets, "[-]"), {.ignore_index = ignore_index}).sum;
      const DTensor first = Grad({loss}, {logits}, {.create_graph = true})[0];
      const std::vector<DTensor> seeds = {v};
      const DTensor second = Grad({first}, {logits}, {.seeds = seeds})[0];
      const DTensor p = Softmax(logits.Detach());
      const DTensor counts =
          Lay(context, Tensor::FromValues<double>({3, 1}, {1, ignores ? 0.0 : 1.0, 1}), "[-, -]");
      const DTensor expected = counts * p * (v - Sum(p * v, {1}, /*keep_dims=*/true));
      EXPECT_TRUE(AllClose(second.FullTensor(), expected.FullTensor(), 1e-12)) << ignore_index;
    };
    constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
    for (const int32_t index : {-100, kLeast, kLeast + 1, std::numeric_limits<int32_t>::max()}) {
      expect(Tensor::FromValues<int32_t>({3}, {1, index, 0}), index, /*ignores=*/true);
    }
    for (const int64_t index : {int64_t{kLeast} - 1, -int64_t{kLeast}, int64_t{1} << 32}) {
      expect(Tensor::FromValues<int32_t>({3}, {1, 2, 0}), index, /*ignores=*/false);
    }
    for (const int64_t index : {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(),
                                int64_t{kLeast}, (int64_t{1} << 53) + 1}) {
      expect(Tensor::FromValues<int64_t>({3}, {1, index, 0}), index, /*ignores=*/true);
    }
  });
}

// A penalty on the size of a gradient, as of Gulrajani et al., arXiv 1704.00028: first-order and second-order
// gradients meet in one leaf.
TEST(GradientsOfGradientsTest, APenaltyOnGradients) {
  const auto step = [](const IntrusivePtr<MeshContext>& context, const char* x_layout, const char* w_layout) {
    const DTensor x = Lay(context, RandomF64({4, 6}, 1), x_layout).RequiresGrad();
    const DTensor w = Lay(context, RandomF64({6, 3}, 2), w_layout).RequiresGrad();
    const DTensor critic = Sum(Tanh(MatMul(x, w)));
    const DTensor slope = Grad({critic}, {x}, {.create_graph = true})[0];
    Backward(critic + Mean(Square(Norm(slope, 2, {1}) - 1.0)));
    EXPECT_TRUE(x.grad().defined());
    return w.grad().FullTensor();
  };
  Tensor expected;
  OnMesh("", [&](const IntrusivePtr<MeshContext>& context) { expected = step(context, "[-, -]", "[-, -]"); });
  OnMesh("a=2,b=2", [&](const IntrusivePtr<MeshContext>& context) {
    EXPECT_TRUE(AllClose(step(context, "[a, -]", "[b, a]"), expected, 1e-12));
  });
}

TEST(GradientsOfGradientsTest, ConvolutionsNameTheirUnfusedForm) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor x = Lay(context, RandomF64({2, 2, 4, 5}, 1), "[-, -, -, -]").RequiresGrad();
    const DTensor kernel = Lay(context, RandomF64({3, 2, 3, 2}, 2), "[-, -, -, -]").RequiresGrad();
    const DTensor y = Conv2d(x, kernel, {}, {.stride = {2, 2}, .padding = {1, 1}});
    for (const DTensor& leaf : {x, kernel}) {
      EXPECT_THAT(
          ErrorOf([&] { Grad({Sum(Square(y))}, {leaf}, {.create_graph = true}); }),
          testing::AllOf(
              HasSubstr("conv_"),
              HasSubstr("is a gradient that has none: compose the convolution of Pad, and of "
                        "a Slice and a product for each element of the kernel, or differentiate once")));
    }
    const DTensor composed = ComposedConv2d(x, kernel, 2, 1);
    EXPECT_TRUE(AllClose(composed.FullTensor(), y.FullTensor(), 1e-12));
    const std::vector<DTensor> fused = Grad({Sum(Square(y))}, {x, kernel});
    const std::vector<DTensor> gradients = Grad({Sum(Square(composed))}, {x, kernel});
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(AllClose(gradients[i].FullTensor(), fused[i].FullTensor(), 1e-12)) << i;
    }
  });
}

TEST(GradientsOfGradientsTest, WhatHasNoneSaysSo) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    const DTensor q = Lay(context, RandomF64({1, 3, 2, 4}, 1), "[-, -, -, -]").RequiresGrad();
    const DTensor y = Sum(CausalAttention(q, q, q));
    EXPECT_THAT(
        ErrorOf([&] { Grad({y}, {q}, {.create_graph = true}); }),
        testing::AllOf(HasSubstr("attention_grad("), HasSubstr("is a gradient that has none: compose"),
                       HasSubstr("attention of products and Softmax")));
    EXPECT_TRUE(context->state().grad_enabled());
    const DTensor x = Lay(context, RandomF64({3}, 1), "[-]").RequiresGrad();
    const Layout whole(1, 0);
    const LocalFunction identity = {
        .name = "identity",
        .operands = {{whole, whole}},
        .outputs = {{x.type(), whole, whole}},
        .forward = [](absl::Span<const Tensor> operands) { return std::vector<Tensor>{operands[0]}; },
        .backward = [](const LocalGradients& of) { return std::vector<Tensor>{of.gradients[0]}; }};
    EXPECT_EQ(
        ErrorOf([&] { Grad({Sum(CallLocal(identity, {x})[0])}, {x}, {.create_graph = true}); }),
        "identity: its backward is a function of pieces, of which nothing is recorded: there is no gradient "
        "of its gradient");
  });
}

}  // namespace
}  // namespace weft
