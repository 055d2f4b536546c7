// Styles of a user's own, declared here as a program's file would: plans take them as they take Weft's.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtensor/autograd/backward.h"
#include "dtensor/functions.h"
#include "dtensor/nn/linear.h"
#include "dtensor/optim/sgd.h"
#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/launch/run_ranks.h"
#include "tests/dtensor/sharded_values.h"
#include "tests/message_of.h"

namespace weft {
namespace {

// Splits the last dim of each of the module's parameters over the axis.
Style LastDimParallel(absl::string_view axis) {
  return {.name = "LastDimParallel", .axis = std::string(axis)};
}
const RegisterStyle kRegisterLastDim({
    .name = "LastDimParallel",
    .reach = StyleReach::kOwn,
    .pins = [](const Style&, bool /*is_root*/) { return StylePins{.input = Replicate()}; },
    .split = [](const Style&) { return StyleSplit{.columns = SplitColumns::All()}; },
    .own_dim = [](const ParameterSpec& spec) { return spec.shape.ndim() - 1; },
});

// Without an axis: what to write beside a module, and how loudly.
struct NoteOptions {
  std::optional<std::string> text = std::nullopt;
  std::optional<int> volume = std::nullopt;
};
Style Note(const NoteOptions& options) {
  return Style{.name = "Note"}.With("text", options.text).With("volume", options.volume);
}
const RegisterStyle kRegisterNote({
    .name = "Note",
    .has_axis = false,
    .fields =
        {
            {.name = "text", .type = StyleField::Type::kWord, .words = {"a", "b"}},
            {.name = "volume", .type = StyleField::Type::kWholeNumber, .least = 0, .most = 11},
        },
    .reach = StyleReach::kBelow,
});

class Net : public Module {
 public:
  Linear up{this, "up", 4, 6};
  Linear down{this, "down", 6, 2};

 protected:
  DTensor Forward(const DTensor& x) override { return down(up(x)); }
};

TEST(UsersStyleTest, SplitsAsItSays) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  Net net;
  const Plan plan = {
      {"up", LastDimParallel("tp")}, {"down.weight", LastDimParallel("tp")}, {"up", FullyShard("dp")}};
  EXPECT_EQ(Plan::FromJson(plan.ToJson()), plan);
  EXPECT_EQ(
      ResolvePlan(net, mesh, plan).ToTable(net, mesh),
      "parameter    style                                 shape   at rest   in compute  gradient  state     "
      "elements per rank\n"
      "up.weight    LastDimParallel(tp) + FullyShard(dp)  [4, 6]  [dp, tp]  [-, tp]     [dp, tp]  [dp, tp]  "
      "6\n"
      "up.bias      LastDimParallel(tp) + FullyShard(dp)  [6]     [tp.dp]   [tp]        [tp.dp]   [tp.dp]   "
      "2\n"
      "down.weight  LastDimParallel(tp)                   [6, 2]  [-, tp]   [-, tp]     [-, tp]   [-, tp]   "
      "6\n"
      "down.bias    -                                     [2]     [-]       [-]         [-]       [-]       "
      "2\n");
}

// Losses of two steps, and all parameters behind them.
std::vector<double> TrainNet(const std::string& mesh_text, const Plan& plan) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  std::vector<double> values;
  RunRanks(static_cast<int>(mesh.num_ranks()), [&](World& world) {
    Net net;
    const auto context = Parallelize(net, world, mesh, plan, {.dtype = DType::kF64});
    Sgd optimizer(net.AllParameters(), {});
    const DTensor x = Lay(context, RandomF64({3, 4}, /*seed=*/1), Layout(2, mesh.num_axes()));
    std::vector<double> mine;
    for (int step = 0; step < 2; ++step) {
      const DTensor loss = Mean(Square(net(x)));
      mine.push_back(loss.Item());
      Backward(loss);
      optimizer.Step(0.5);
      optimizer.ZeroGrad();
    }
    for (const Parameter* parameter : net.AllParameters()) {
      for (const double value : parameter->at_rest().FullTensor().ToVector<double>()) mine.push_back(value);
    }
    if (world.rank() == 0) values = mine;
  });
  return values;
}

TEST(UsersStyleTest, TrainsAsOneRankDoes) {
  const std::vector<double> one = TrainNet("", {});
  ASSERT_EQ(one.size(), 2u + 4 * 6 + 6 + 6 * 2 + 2);
  EXPECT_LT(one[1], 0.99 * one[0]) << "the step changes nothing";
  const Plan up = {{"up", LastDimParallel("tp")}};
  for (const auto& [mesh, plan] : std::vector<std::pair<std::string, Plan>>{
           {"tp=2", up},
           {"tp=3", up},
           {"tp=2", {{"up", LastDimParallel("tp")}, {"down", LastDimParallel("tp")}}},
           {"dp=2,tp=2", up.Merge({{"", FullyShard("dp")}})}}) {
    const std::vector<double> spread = TrainNet(mesh, plan);
    ASSERT_EQ(spread.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(spread[i], one[i], 1e-12) << plan.ToString() << " on " << mesh << ", number " << i;
    }
  }
}

TEST(UsersStyleTest, WithoutAnAxisTheLaterEntryWinsFieldByField) {
  const DeviceMesh mesh = DeviceMesh::Parse("tp=2");
  Net net;
  const Plan plan = {
      {"", Note({.text = "a", .volume = 3})},
      {"up", Note({.volume = 11})},
      {"up.bias", Note({.text = "b"})},
  };
  EXPECT_EQ(Plan::FromJson(plan.ToJson()), plan);
  const ResolvedPlan resolved = ResolvePlan(net, mesh, plan);
  EXPECT_EQ(resolved.modules[0].styles, std::vector<Style>{Note({.text = "a", .volume = 3})});
  EXPECT_EQ(resolved.modules[1].styles, std::vector<Style>{Note({.text = "a", .volume = 11})});
  EXPECT_EQ(resolved.modules[2].styles, std::vector<Style>{Note({.text = "a", .volume = 3})});
  EXPECT_EQ(resolved.parameters[0].styles, std::vector<Style>{Note({.text = "a", .volume = 11})});
  EXPECT_EQ(resolved.parameters[1].styles, std::vector<Style>{Note({.text = "b", .volume = 11})});
  // Later is later in the plan, not further in.
  const ResolvedPlan turned = ResolvePlan(net, mesh, {plan.entries()[1], plan.entries()[0]});
  EXPECT_EQ(turned.modules[1].styles, std::vector<Style>{Note({.text = "a", .volume = 3})});
  // It leaves layouts and borders alone.
  EXPECT_EQ(resolved.modules[1].border, ModuleBorder());
  EXPECT_TRUE(resolved.parameters[0].layouts.at_rest.IsFullyReplicated());
}

TEST(UsersStyleTest, ItsMistakesAreNamedAlike) {
  EXPECT_EQ(InvalidArgumentMessage([] {
              Plan::FromJson(R"json({"entries": [{"path": "", "style": "Note", "axis": "tp"}]})json");
            }),
            "plan entry 0: Note has no field \"axis\"; expected path, style, text, volume");
  EXPECT_EQ(InvalidArgumentMessage([] {
              Plan::FromJson(R"json({"entries": [{"path": "", "style": "Note", "volume": 12}]})json");
            }),
            "plan entry 0, field \"volume\": expected a whole number from 0 to 11, got 12");
  Net net;
  EXPECT_EQ(InvalidArgumentMessage([&] {
              ResolvePlan(net, DeviceMesh::Parse("tp=2"), {{"", Note({.text = "c"})}});
            }),
            "plan entry \"\": Note(text=c): field \"text\" of Note: expected a or b, got c");
}

}  // namespace
}  // namespace weft
