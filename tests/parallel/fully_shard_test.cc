// Over which dim FullyShard splits a parameter at rest.

#include <map>
#include <string>
#include <vector>

#include "dtensor/nn/gpt.h"
#include "gtest/gtest.h"
#include "mesh/shard_math.h"
#include "parallel/parallelize.h"
#include "tests/message_of.h"

namespace weft {
namespace {

// Over eight ranks none of GPT-2 is uneven, and no rank is left without elements.
TEST(FullyShardTest, SplitsADimThatDividesEvenly) {
  Gpt model(GptConfig::Gpt2_124M());
  const DeviceMesh mesh = DeviceMesh::Parse("dp=8");
  const Plan plan = {{"", FullyShard("dp")}};
  const ResolvedPlan resolved = ResolvePlan(model, mesh, plan);
  std::map<std::string, std::string> at_rest;
  for (const ResolvedParameter& parameter : resolved.parameters) {
    at_rest[parameter.path] = parameter.layouts.at_rest.ToString(mesh);
    EXPECT_EQ(parameter.layouts.compute, Layout(parameter.layouts.at_rest.ndim(), /*num_axes=*/1));
  }
  EXPECT_EQ(at_rest.at("wte.weight"), "[-, dp]");                      // [50257, 768]
  EXPECT_EQ(at_rest.at("wpe"), "[dp, -]");                             // [1024, 768]
  EXPECT_EQ(at_rest.at("blocks.0.attn.qkv.weight"), "[dp, -, -, -]");  // [768, 3, 12, 64]
  EXPECT_EQ(at_rest.at("blocks.0.attn.qkv.bias"), "[-, -, dp]");       // [3, 12, 64]
  EXPECT_EQ(at_rest.at("blocks.0.attn.proj.weight"), "[-, dp, -]");    // [12, 64, 768]
  const std::vector<Parameter*> parameters = model.AllParameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Shape& shape = parameters[i]->spec().shape;
    EXPECT_EQ(MaxLocalElements(shape, resolved.parameters[i].layouts.at_rest, mesh), shape.num_elements() / 8)
        << parameters[i]->path();
  }
}

// A module of one parameter.
class OneParameter : public Module {
 public:
  explicit OneParameter(const Shape& shape) : weight(this, "weight", {.shape = shape}) {}
  Parameter weight;
};

TEST(FullyShardTest, SplitsTheLargestDimWhereNoneDividesEvenly) {
  struct Case {
    Shape shape;
    std::string at_rest;
  };
  for (const Case& c : {Case{{3, 5}, "[-, dp]"}, Case{{5, 3}, "[dp, -]"}, Case{{3, 7, 7}, "[-, dp, -]"},
                        Case{{1, 3}, "[-, dp]"}, Case{{1}, "[dp]"}, Case{{}, "[]"}}) {
    OneParameter model(c.shape);
    const DeviceMesh mesh = DeviceMesh::Parse("dp=4");
    const ResolvedPlan resolved = ResolvePlan(model, mesh, {{"", FullyShard("dp")}});
    EXPECT_EQ(resolved.parameters[0].layouts.at_rest.ToString(mesh), c.at_rest) << c.shape.ToString();
  }
}

TEST(FullyShardTest, SplitsTheDimThatIsGiven) {
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2, tp=2");
  const auto at_rest = [&](const Shape& shape, int dim) {
    OneParameter model(shape);
    const ResolvedPlan resolved = ResolvePlan(model, mesh, {{"", FullyShard("dp", {.dim = dim})}});
    return resolved.parameters[0].layouts.at_rest.ToString(mesh);
  };
  EXPECT_EQ(at_rest({3, 4}, 0), "[dp, -]");
  EXPECT_EQ(at_rest({4, 3}, 1), "[-, dp]");
  EXPECT_EQ(at_rest({4, 3}, -1), "[-, dp]");
  EXPECT_EQ(at_rest({4, 3}, -2), "[dp, -]");
  EXPECT_EQ(at_rest({}, 0), "[]");
  const auto message = [&](const Shape& shape, const Style& style) {
    return InvalidArgumentMessage([&] {
      OneParameter model(shape);
      ResolvePlan(model, mesh, {{"", style}});
    });
  };
  EXPECT_EQ(message({4, 3}, FullyShard("dp", {.dim = 2})),
            "plan entry \"\": FullyShard(dp, dim=2): 'weight' [4, 3] has no dim 2; expected -2 to 1");
  EXPECT_EQ(message({4}, FullyShard("dp", {.dim = -2})),
            "plan entry \"\": FullyShard(dp, dim=-2): 'weight' [4] has no dim -2; expected -1 to 0");
  EXPECT_EQ(message({4, 3}, ColumnParallel("tp").With("dim", 0)),
            "plan entry \"\": ColumnParallel(tp, dim=0): ColumnParallel has no field \"dim\"; expected "
            "input, output");
}

// Two units over one parameter count each other, and what a later entry splits.
TEST(FullyShardTest, CountsTheOtherSplits) {
  const DeviceMesh mesh = DeviceMesh::Parse("a=2, b=2, c=2");
  const auto at_rest = [&](const Shape& shape, const Plan& plan) {
    OneParameter model(shape);
    return ResolvePlan(model, mesh, plan).parameters[0].layouts.at_rest.ToString(mesh);
  };
  const Plan two = {{"", FullyShard("a")}, {"", FullyShard("b")}};
  EXPECT_EQ(at_rest({4, 2}, two), "[a, b]");    // dim 0 would divide twice, but a has it
  EXPECT_EQ(at_rest({4, 3}, two), "[a.b, -]");  // no other divides
  EXPECT_EQ(at_rest({2, 6}, two), "[a, b]");
  EXPECT_EQ(at_rest({6, 3}, two), "[a.b, -]");  // of 3 and 3 left, the first
  EXPECT_EQ(at_rest({6, 5}, two), "[a, b]");    // of 3 and 5 left
  const Plan three = {{"", FullyShard("a")}, {"", FullyShard("b", {.dim = 0})}, {"", FullyShard("c")}};
  EXPECT_EQ(at_rest({4, 4}, three), "[b.c, a]");
  EXPECT_EQ(at_rest({2, 8}, three), "[b, a.c]");
}

}  // namespace
}  // namespace weft
