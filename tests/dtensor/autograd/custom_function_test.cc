// Functions of a user's own: gradients and gradients of gradients of what they stand for, under any layouts.

#include "dtensor/autograd/custom_function.h"

#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Context = IntrusivePtr<MeshContext>;

// x y^2 and x + y, of two operands and two outputs.
CustomFunction Products() {
  return {.name = "products",
          .forward = [](const DTensors& x) -> DTensors {
            return {Mul(x[0], Square(x[1])), Add(x[0], x[1])};
          },
          .backward = [](const CustomGradients& of) -> DTensors {
            const DTensor &x = of.operands[0], &y = of.operands[1];
            DTensor dx, dy;
            if (of.gradients[0].defined()) {
              dx = Mul(of.gradients[0], Square(y));
              dy = Mul(of.gradients[0], Scale(Mul(x, y), 2));
            }
            if (of.gradients[1].defined()) {
              dx = dx.defined() ? Add(dx, of.gradients[1]) : of.gradients[1];
              dy = dy.defined() ? Add(dy, of.gradients[1]) : of.gradients[1];
            }
            return {dx, dy};
          }};
}

DTensors Plain(const DTensors& x) { return {Mul(x[0], Square(x[1])), Add(x[0], x[1])}; }

struct Gradients {
  std::vector<double> x, y, xx;

  bool operator==(const Gradients&) const = default;
};

// Of a sum over both outputs; and of the square of x's gradient, in x and y together.
Gradients GradientsOf(const Context& context, const Layout& of_x, const Layout& of_y, bool custom) {
  const DTensor x = DTensor::Distribute(context, RandomF64({5, 4}, 1), of_x).RequiresGrad();
  const DTensor y = DTensor::Distribute(context, RandomF64({5, 4}, 2), of_y).RequiresGrad();
  const DTensors z = custom ? CallCustom(Products(), {x, y}) : Plain({x, y});
  const DTensor loss = Add(Sum(Square(z[0])), Sum(Exp(z[1])));
  const std::vector<DTensor> first =
      Grad(std::vector<DTensor>{loss}, std::vector<DTensor>{x, y}, {.create_graph = true});
  const std::vector<DTensor> second =
      Grad(std::vector<DTensor>{Sum(Square(first[0]))}, std::vector<DTensor>{x});
  return {first[0].FullTensor().ToVector<double>(), first[1].FullTensor().ToVector<double>(),
          second[0].FullTensor().ToVector<double>()};
}

void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-12 * (1 + std::abs(expected[i])));
  }
}

TEST(CustomFunctionTest, HasTheGradientsOfWhatItStandsFor) {
  Gradients one;
  OnMesh("", [&](const Context& context) {
    one = GradientsOf(context, Layout(2, 0), Layout(2, 0), /*custom=*/false);
    const Gradients custom = GradientsOf(context, Layout(2, 0), Layout(2, 0), /*custom=*/true);
    ExpectNear(custom.x, one.x);
    ExpectNear(custom.y, one.y);
    ExpectNear(custom.xx, one.xx);
  });
  OnMesh("a=2,b=2", [&](const Context& context) {
    const std::vector<Layout> layouts = AllLayouts(context->mesh(), 2, {});
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Layout &of_x = layouts[i], &of_y = layouts[(i * 3 + 1) % layouts.size()];
      const Gradients custom = GradientsOf(context, of_x, of_y, /*custom=*/true);
      ExpectNear(custom.x, one.x);
      ExpectNear(custom.y, one.y);
      ExpectNear(custom.xx, one.xx);
    }
  });
}

// Only what it saves is there, and only what is asked for is made.
TEST(CustomFunctionTest, SavesAndMakesWhatItSays) {
  OnMesh("a=2", [](const Context& context) {
    const Layout rows = Layout(2, 1).WithShard(0, 0);
    int64_t num_made = 0;
    const CustomFunction exp = {.name = "my_exp",
                                .forward = [](const DTensors& x) -> DTensors { return {Exp(x[0])}; },
                                .backward = [&](const CustomGradients& of) -> DTensors {
                                  EXPECT_FALSE(of.operands[0].defined());
                                  EXPECT_TRUE(of.wants[0]);
                                  ++num_made;
                                  return {Mul(of.outputs[0], of.gradients[0])};
                                },
                                .saves_operands = false};
    const DTensor x = DTensor::Distribute(context, RandomF64({4, 3}, 1), rows).RequiresGrad();
    const DTensor loss = Sum(CallCustom(exp, {x})[0]);
    Backward(loss, DTensor(), {.retain_graph = true});
    const std::vector<double> once = x.grad().FullTensor().ToVector<double>();
    EXPECT_EQ(once, Exp(x.Detach()).FullTensor().ToVector<double>());
    Backward(loss);
    EXPECT_EQ(num_made, 2);
    const DTensor y = CallCustom(exp, {x})[0];
    const DTensor seed = DTensor::Distribute(context, RandomF64({4, 3}, 2), rows);
    Backward(y, seed);
    EXPECT_THAT(ErrorOf([&] { Backward(y, seed); }),
                HasSubstr("the history of a result of my_exp was used up by an earlier Backward"));
    // Nothing is recorded where nothing asks.
    EXPECT_FALSE(CallCustom(exp, {x.Detach()})[0].requires_grad());
    const NoGradGuard no_grad(context->state());
    EXPECT_FALSE(CallCustom(exp, {x})[0].requires_grad());
  });
}

// ReLU, with its mask as a second output, which backward reads.
TEST(CustomFunctionTest, OutputsThatAreNotFloatingHaveNoHistory) {
  OnMesh("a=2", [](const Context& context) {
    const CustomFunction relu = {.name = "my_relu",
                                 .forward = [](const DTensors& x) -> DTensors {
                                   const DTensor mask = Greater(x[0], 0.0);
                                   return {Mul(x[0], Cast(mask, DType::kF64)), mask};
                                 },
                                 .backward = [](const CustomGradients& of) -> DTensors {
                                   return {Mul(Cast(of.outputs[1], DType::kF64), of.gradients[0])};
                                 }};
    const Tensor values = RandomF64({6, 3}, 1);
    const DTensor x = DTensor::Distribute(context, values, Layout(2, 1).WithShard(0, 0)).RequiresGrad();
    const DTensor y = CallCustom(relu, {x})[0];
    const DTensor first = Grad({Sum(Mul(y, Square(y)))}, {x}, {.create_graph = true})[0];
    const DTensor second = Grad({Sum(first)}, {x})[0];
    std::vector<double> of_first, of_second;
    for (const double value : values.ToVector<double>()) {
      of_first.push_back(value > 0 ? 3 * value * value : 0);
      of_second.push_back(value > 0 ? 6 * value : 0);
    }
    ExpectNear(first.FullTensor().ToVector<double>(), of_first);
    ExpectNear(second.FullTensor().ToVector<double>(), of_second);
  });
}

// The mistake: a factor is forgotten; differences see it.
TEST(CustomFunctionTest, AWrongBackwardIsSeen) {
  OnMesh("", [](const Context& context) {
    const auto gradient = [&](double factor) {
      const CustomFunction square = {.name = "my_square",
                                     .forward = [](const DTensors& x) -> DTensors { return {Square(x[0])}; },
                                     .backward = [&](const CustomGradients& of) -> DTensors {
                                       return {Mul(Scale(of.operands[0], factor), of.gradients[0])};
                                     }};
      const DTensor x = DTensor::Distribute(context, RandomF64({3}, 1), Layout(1, 0)).RequiresGrad();
      Backward(Sum(CallCustom(square, {x})[0]));
      return x.grad().FullTensor().ToVector<double>();
    };
    const std::vector<double> x = RandomF64({3}, 1).ToVector<double>();
    constexpr double kStep = 1e-5;
    for (size_t i = 0; i < x.size(); ++i) {
      const double difference =
          ((x[i] + kStep) * (x[i] + kStep) - (x[i] - kStep) * (x[i] - kStep)) / (2 * kStep);
      EXPECT_NEAR(gradient(2)[i], difference, 1e-8);
      EXPECT_GT(std::abs(gradient(1)[i] - difference), 1e-3);
    }
  });
}

TEST(CustomFunctionTest, MistakesAreNamed) {
  OnMesh("", [](const Context& context) {
    const auto run = [&](CustomFunction function) {
      return ErrorOf([&] {
        const DTensor x = DTensor::Distribute(context, RandomF64({3}, 1), Layout(1, 0)).RequiresGrad();
        Backward(Sum(CallCustom(function, {x})[0]));
      });
    };
    const auto id = [](const DTensors& x) -> DTensors { return {x[0]}; };
    EXPECT_THAT(run({"f", id, [](const CustomGradients&) -> DTensors { return {}; }}),
                HasSubstr("f: backward returned 0 gradients for 1 operands"));
    EXPECT_THAT(
        run({"f", id,
             [](const CustomGradients& of) -> DTensors { return {Cast(of.gradients[0], DType::kF32)}; }}),
        HasSubstr("f: the gradient of operand 0 is f32[3], expected f64[3]"));
    const DTensor elsewhere = Full(Bind(context, DeviceMesh::Parse("b=1")), DType::kF64, {3}, 1);
    EXPECT_EQ(run({"f", id, [&](const CustomGradients&) -> DTensors { return {elsewhere}; }}),
              "f: the gradient of operand 0 is f64[3] [-] on mesh (b=1), expected a tensor on mesh ()");
    EXPECT_THAT(run({"f", [](const DTensors&) -> DTensors { return {DTensor()}; }, nullptr}),
                HasSubstr("f: output 0 is undefined"));
    EXPECT_THAT(ErrorOf([&] {
                  CallCustom({"f", id, nullptr}, {DTensor()});
                }),
                HasSubstr("f: operand 0 is undefined"));
    EXPECT_EQ(run({"f", nullptr, nullptr}), "f: expected a forward, got an empty function");
    // Where no gradient is wanted none is missed.
    EXPECT_EQ(run({"f", id, nullptr}), "f: expected a backward, got an empty function");
    EXPECT_EQ(ErrorOf([&] {
                CallCustom({"f", id, nullptr}, {Full(context, DType::kF64, {3}, 1)});
              }),
              "nothing was thrown");
    EXPECT_EQ(ErrorOf([&] {
                CallCustom({"f", id, nullptr}, {Full(context, DType::kF64, {3}, 1).RequiresGrad()});
              }),
              "nothing was thrown");
    // Integers have none.
    const auto rounded = [](const DTensors& x) -> DTensors { return {Convert(x[0], DType::kI64)}; };
    EXPECT_EQ(ErrorOf([&] {
                CallCustom({"f", rounded, nullptr}, {Full(context, DType::kF64, {3}, 1).RequiresGrad()});
              }),
              "nothing was thrown");
    EXPECT_EQ(run({"f", id, [](const CustomGradients& of) -> DTensors { return {of.gradients[0]}; }}),
              "nothing was thrown");
  });
}

}  // namespace
}  // namespace weft
