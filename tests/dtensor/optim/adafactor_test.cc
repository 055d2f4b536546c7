#include "dtensor/optim/adafactor.h"

#include <cmath>
#include <memory>
#include <vector>

#include "dtensor/functions.h"
#include "dtensor/nn/module.h"
#include "dtensor/optim/lamb.h"
#include "gmock/gmock.h"
#include "tests/dtensor/optim/optimizer_cases.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsNan;

using Context = IntrusivePtr<MeshContext>;

class Table : public Module {
 public:
  Parameter table{this, "table", {.shape = {4, 3}, .initializer = Initializer::Constant(2)}};
  Parameter vector{this, "vector", {.shape = {4}, .initializer = Initializer::Constant(2)}};

  void Lay(const Context& context, DType dtype) {
    Bind(context);
    const Layout rows = Layout::Parse("[a, -]", context->mesh());
    const Layout elements = Layout::Parse("[a]", context->mesh());
    table.Materialize(context, dtype, dtype, {rows, rows});
    vector.Materialize(context, dtype, dtype, {elements, elements});
  }
};

void SetGrad(Parameter& parameter, const std::vector<double>& values) {
  const DTensor& value = parameter.at_rest();
  const Tensor gradient = FromDoubles(value.dtype(), value.shape(), values);
  parameter.SetGrad(DTensor::Distribute(value.context(), gradient, value.layout()));
}

std::vector<double> ValuesOf(const Parameter& parameter) {
  return Cast(parameter.at_rest(), DType::kF64).FullTensor().ToVector<double>();
}

// The paper's eps1, whose square f32 does not hold, and none: a row without a gradient stays, and the others move. By
// hand, for gradients of 1: r is 1, c 3/4 and u 1, whose rms is below d; a is rms(p), 2, times the learning rate.
TEST(AdafactorTest, RowsWithoutAGradientStayUnderAnyEps1) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    for (const double eps1 : {1e-30, 1e-60, 0.0}) {
      OnMesh("a=2", [&](const Context& context) {
        Table model;
        model.Lay(context, dtype);
        Adafactor adafactor({&model.table}, {.eps1 = eps1});
        SetGrad(model.table, {1, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1});
        adafactor.Step(0.125);
        const std::vector<double> values = ValuesOf(model.table);
        for (int i = 0; i < 12; ++i) {
          EXPECT_NEAR(values[i], i / 3 == 2 ? 2 : 1.75, 1e-2) << dtype << " " << eps1 << " " << i;
        }
        adafactor.Step(0.125);
        EXPECT_LT(ValuesOf(model.table)[0], 1.7) << dtype << " " << eps1;
      });
    }
  }
}

// As under AdamW: it is the scale alone that has an update skipped.
TEST(AdafactorTest, AGradientThatIsNotANumberShows) {
  OnMesh("a=2", [](const Context& context) {
    for (const bool is_lamb : {false, true}) {
      Table model;
      model.Lay(context, DType::kF32);
      const std::unique_ptr<Optimizer> optimizer =
          is_lamb ? std::unique_ptr<Optimizer>(std::make_unique<Lamb>(model.AllParameters(), LambOptions()))
                  : std::make_unique<Adafactor>(model.AllParameters(), AdafactorOptions());
      SetGrad(model.table, std::vector<double>(12, NAN));
      SetGrad(model.vector, {1, NAN, 1, 1});
      optimizer->Step(0.1, Full(context, DType::kF32, {}, NAN));
      EXPECT_THAT(ValuesOf(model.table), Each(2.0));
      EXPECT_THAT(ValuesOf(model.vector), Each(2.0));
      optimizer->Step(0.1);
      EXPECT_THAT(ValuesOf(model.table), Each(IsNan())) << is_lamb;
      EXPECT_THAT(ValuesOf(model.vector),
                  ElementsAre(testing::Le(2), IsNan(), testing::Le(2), testing::Le(2)))
          << is_lamb;
    }
  });
}

// What f16 rounds to 0, and to infinity. By hand: g is 1e-4, whose square f16 does not hold, over eps1, 2^-10; and 100 over
// itself.
TEST(AdafactorTest, TheScaleIsNotRoundedToTheGradientsDType) {
  OnMesh("a=2", [](const Context& context) {
    for (const bool is_small : {true, false}) {
      Table model;
      model.Lay(context, DType::kF16);
      Adafactor adafactor(model.AllParameters(), {});
      SetGrad(model.table, std::vector<double>(12, is_small ? 1e4 : 1e-3));
      SetGrad(model.vector, std::vector<double>(4, is_small ? 1e4 : 1e-3));
      adafactor.Step(0.5, Full(context, DType::kF32, {}, is_small ? 1e-8 : 1e5));
      const double expected = 2 - (is_small ? 1e-4 * 1024 : 1);
      EXPECT_THAT(ValuesOf(model.table), Each(testing::DoubleNear(expected, 1e-2)));
      EXPECT_THAT(ValuesOf(model.vector), Each(testing::DoubleNear(expected, 1e-2)));
    }
  });
}

// Under ZeRO-1 and -2, where its empty piece is a tensor of its own, to which nothing is written.
TEST(AdafactorTest, AParameterOfNoElementsIsLeftOut) {
  for (const OptimizedModel::Rows& rows :
       {OptimizedModel::Rows{.vector = 0}, OptimizedModel::Rows{.matrix = 0}}) {
    OnMesh("a=2", [&](const Context& context) {
      OptimizedModel model(rows);
      model.Lay(context, OptimizedModel::Split::kStateAlone);
      Adafactor adafactor(model.AllParameters(), {});
      const std::vector<double> before = model.Values();
      model.SetGradients(1);
      adafactor.Step(0.1);
      EXPECT_EQ(model.Values().size(), before.size());
      EXPECT_NE(model.Values(), before);
    });
  }
}

}  // namespace
}  // namespace weft
