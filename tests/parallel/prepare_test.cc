// Where tensors cross a module's border: of several inputs and outputs each, gathered outputs and inputs that come
// whole, and products whose weight is split over two axes.

#include <string>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/styles.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"
#include "tests/ops/tensor_compare.h"

namespace weft {
namespace {

using testing::HasSubstr;
using Context = IntrusivePtr<MeshContext>;

// a x + b, and the same of y without b; it sees how its inputs lie.
class TwoInTwoOut : public Module {
 public:
  std::pair<DTensor, DTensor> operator()(const DTensor& x, const DTensor& y) {
    const ModuleCall call(*this);
    const DTensor a = call.Input(x, 0), b = call.Input(y, 1);
    seen = {a.layout(), b.layout()};
    return {call.Output(Add(Mul(a, scale.Value()), b), 0), call.Output(Mul(b, scale.Value()), 1)};
  }

  Parameter scale{this, "scale", {.shape = {6}, .initializer = Initializer::Constant(3)}};
  std::vector<Layout> seen;
};

TEST(PrepareTest, EachTensorLiesAsItIsTold) {
  const Tensor full_x = RandomF64({4, 6}, 1), full_y = RandomF64({4, 6}, 2);
  const DeviceMesh mesh = DeviceMesh::Parse("tp=2");
  const Plan plan = {{"", PrepareInput("tp", {Shard(0), std::nullopt})},
                     {"", PrepareOutput("tp", {std::nullopt, Replicate()})}};
  EXPECT_EQ(Plan::FromJson(plan.ToJson()), plan);
  EXPECT_EQ(plan.entries()[0].style.ToString(), "PrepareInput(tp, tensor_0=Shard(0))");
  OnMesh("tp=2", [&](const Context& context) {
    TwoInTwoOut model;
    Parallelize(model, context, plan, {.dtype = DType::kF64});
    const Layout whole(2, 1);
    const DTensor x = DTensor::Distribute(context, full_x, whole).RequiresGrad();
    const DTensor y = DTensor::Distribute(context, full_y, whole.WithShard(0, 1)).RequiresGrad();
    const auto [sum, scaled] = model(x, y);
    EXPECT_EQ(model.seen[0], whole.WithShard(0, 0));
    EXPECT_EQ(model.seen[1], whole.WithShard(0, 1));
    EXPECT_EQ(scaled.layout(), whole);
    const DTensor gx = DTensor::Distribute(context, full_x, whole),
                  gy = DTensor::Distribute(context, full_y, whole);
    EXPECT_TRUE(AllClose(sum.FullTensor(), Add(Scale(gx, 3), gy).FullTensor(), 1e-14));
    EXPECT_TRUE(AllClose(scaled.FullTensor(), Scale(gy, 3).FullTensor(), 1e-14));
    Backward(Add(Sum(sum), Sum(scaled)));
    EXPECT_EQ(x.grad().layout(), x.layout());
    EXPECT_EQ(x.grad().FullTensor().ToVector<double>(), std::vector<double>(24, 3));
    EXPECT_EQ(y.grad().FullTensor().ToVector<double>(), std::vector<double>(24, 4));
  });
}

class OneLayer : public Module {
 public:
  explicit OneLayer(bool has_bias) : layer(this, "layer", 6, 8, {.bias = has_bias}) {}
  Linear layer;

 protected:
  DTensor Forward(const DTensor& x) override { return layer(x); }
};

// Megatron's gather_output, and input_is_parallel = false.
TEST(PrepareTest, OutputsAreGatheredAndInputsSplitWherePlansSaySo) {
  const Tensor full = RandomF64({4, 6}, 1);
  OnMesh("tp=2", [&](const Context& context) {
    const Layout whole(2, 1);
    const DTensor x = DTensor::Distribute(context, full, whole);
    const auto value = [&](const Plan& plan, Layout* out, std::string* sent) {
      OneLayer layer(/*has_bias=*/true);
      Parallelize(layer, context, plan, {.dtype = DType::kF64});
      context->world().ledger().Clear();
      const DTensor y = layer(x);
      *out = y.layout();
      *sent = LedgerText(*context);
      return y.FullTensor();
    };
    Layout out;
    std::string sent;
    const Tensor expected = value({}, &out, &sent);
    EXPECT_TRUE(AllClose(value({{"layer", ColumnParallel("tp")}}, &out, &sent), expected, 1e-13));
    EXPECT_EQ(out, whole.WithShard(0, 1));
    EXPECT_EQ(sent, "");
    EXPECT_TRUE(AllClose(value({{"layer", ColumnParallel("tp", {.output = Replicate()})}}, &out, &sent),
                         expected, 1e-13));
    EXPECT_EQ(out, whole);
    EXPECT_EQ(sent, "all_gather tp activation");
    EXPECT_TRUE(AllClose(
        value({{"layer", ColumnParallel("tp")}, {"layer", PrepareOutput("tp", {Replicate()})}}, &out, &sent),
        expected, 1e-13));
    EXPECT_EQ(sent, "all_gather tp activation");
    // The whole input is cut where it is, without a message; the terms are summed.
    EXPECT_TRUE(AllClose(value({{"layer", RowParallel("tp")}}, &out, &sent), expected, 1e-13));
    EXPECT_EQ(out, whole);
    EXPECT_EQ(sent, "all_reduce tp activation");
  });
}

// A weight [in, out] in blocks: rows over one axis, columns over another. Each rank multiplies its block; the sum over
// rows is of a rank's columns alone.
TEST(PrepareTest, ABlockOfTheWeightForEachRank) {
  const Tensor full = RandomF64({4, 6}, 1);
  std::vector<double> expected, expected_gradient;
  const auto run = [&](const Context& context, const Plan& plan, std::string* sent) {
    OneLayer layer(/*has_bias=*/false);
    Parallelize(layer, context, plan, {.dtype = DType::kF64});
    const int axes = context->mesh().num_axes();
    const DTensor x = DTensor::Distribute(context, full, Layout(2, axes)).RequiresGrad();
    context->world().ledger().Clear();
    const DTensor y = layer(x);
    *sent = LedgerText(*context);
    Backward(Sum(Square(y)));
    return std::pair(y.FullTensor().ToVector<double>(), x.grad().FullTensor().ToVector<double>());
  };
  OnMesh("", [&](const Context& context) {
    std::string sent;
    std::tie(expected, expected_gradient) = run(context, {}, &sent);
  });
  OnMesh("row=2,column=3", [&](const Context& context) {
    std::string sent;
    const auto [value, gradient] =
        run(context, {{"layer", ColumnParallel("column")}, {"layer", RowParallel("row")}}, &sent);
    EXPECT_EQ(sent, "all_reduce row activation");
    ASSERT_EQ(value.size(), expected.size());
    for (size_t i = 0; i < value.size(); ++i) EXPECT_NEAR(value[i], expected[i], 1e-13);
    for (size_t i = 0; i < gradient.size(); ++i) EXPECT_NEAR(gradient[i], expected_gradient[i], 1e-12);
  });
}

TEST(PrepareTest, MistakesAreNamed) {
  EXPECT_THAT(MessageOf([] { CheckStyle(PrepareInput("tp", {})); }),
              HasSubstr("PrepareInput: expected a placement of one tensor at least"));
  EXPECT_THAT(MessageOf([] {
                PrepareOutput("tp", {Shard(0), Shard(0), Shard(0), Shard(0), Shard(0)});
              }),
              HasSubstr("PrepareOutput: expected at most 4 placements, got 5"));
}

}  // namespace
}  // namespace weft
