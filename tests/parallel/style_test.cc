#include "parallel/style.h"

#include <cstdint>
#include <sstream>
#include <vector>

#include "gtest/gtest.h"
#include "parallel/styles.h"
#include "tests/message_of.h"

namespace weft {
namespace {

TEST(StyleTest, PrintsAsItIsWritten) {
  EXPECT_EQ(ColumnParallel("tp").ToString(), "ColumnParallel(tp)");
  EXPECT_EQ(RowParallel("tp", {.output = Shard(1)}).ToString(), "RowParallel(tp, output=Shard(1))");
  EXPECT_EQ(VocabParallel("x", {.input = Replicate(), .output = Shard(1)}).ToString(),
            "VocabParallel(x, input=Replicate, output=Shard(1))");
  EXPECT_EQ(SequenceParallel("tp").ToString(), "SequenceParallel(tp)");
  EXPECT_EQ(DataParallel("dp").ToString(), "DataParallel(dp)");
  EXPECT_EQ(FullyShard("dp", {.output = Shard(0), .dim = -1}).ToString(),
            "FullyShard(dp, output=Shard(0), dim=-1)");
  std::ostringstream out;
  out << FullyShard("dp");
  EXPECT_EQ(out.str(), "FullyShard(dp)");
}

TEST(StyleTest, ComparesAllItsFields) {
  EXPECT_EQ(ColumnParallel("tp"), ColumnParallel("tp"));
  EXPECT_NE(ColumnParallel("tp"), RowParallel("tp"));
  EXPECT_NE(ColumnParallel("tp"), ColumnParallel("dp"));
  EXPECT_NE(RowParallel("tp"), RowParallel("tp", {.output = Replicate()}));
  EXPECT_NE(FullyShard("dp"), FullyShard("dp", {.dim = 0}));
  EXPECT_NE(RowParallel("tp", {.input = Shard(1)}), RowParallel("tp", {.output = Shard(1)}));
}

TEST(StyleTest, FieldsThatAreNotGivenAreNotThere) {
  EXPECT_EQ(DataParallel("dp", {.shard_state = true}).ToString(), "DataParallel(dp, shard_state=true)");
  EXPECT_EQ(DataParallel("dp", {.shard_gradient = true}).ToString(), "DataParallel(dp, shard_gradient=true)");
  EXPECT_EQ(FullyShard("dp", {.reshard = Reshard::kNever, .wrap_from = 1'000'000}).ToString(),
            "FullyShard(dp, reshard=never, wrap_from=1000000)");
  EXPECT_EQ(FullyShard("dp", {.reshard = Reshard::kAlways}).ToString(), "FullyShard(dp)");
  EXPECT_EQ(FullyShard("dp", {.reshard_to = 8, .wrap = "Block"}).ToString(),
            "FullyShard(dp, reshard_to=8, wrap=Block)");
  EXPECT_EQ(Ignore().ToString(), "Ignore()");
  EXPECT_EQ(FullyShard("dp").fields.size(), 0u);
}

TEST(StyleTest, CostsOfStagesAreReadBackToTheBit) {
  const std::vector<double> costs = {10000002, 10000000, 1.0 / 3, 0};
  const Style style = Pipeline("pp", {.costs = costs});
  EXPECT_EQ(PipelineOptionsOf(style).costs, costs);
  EXPECT_EQ(style.ToString(), "Pipeline(pp, costs=10000002 1e+07 0.3333333333333333 0)");
  const std::vector<int64_t> sizes = {(int64_t{1} << 53) + 1, 2};
  EXPECT_EQ(PipelineOptionsOf(Pipeline("pp", {.sizes = sizes})).sizes, sizes);
}

// A style of a user's own, from the user's own file: all that it takes.
Style PinnedOutput(absl::string_view axis, double weight) {
  return Style{.name = "PinnedOutput", .axis = std::string(axis)}.With("weight", weight);
}
const RegisterStyle kRegister({
    .name = "PinnedOutput",
    .fields = {{.name = "weight", .type = StyleField::Type::kNumber}},
    .pins = [](const Style&, bool /*is_root*/) { return StylePins{.output = Replicate()}; },
});

TEST(StyleTest, AUsersStyleIsOneOfThem) {
  const Style style = PinnedOutput("tp", 0.5);
  EXPECT_EQ(style.ToString(), "PinnedOutput(tp, weight=0.5)");
  EXPECT_EQ(style.Get<double>("weight"), 0.5);
  EXPECT_NO_THROW(CheckStyle(style));
  const StyleRules& rules = FindStyle("PinnedOutput");
  EXPECT_EQ(rules.pins(style, true).output, Placement(Replicate()));
}

TEST(StyleTest, MistakesAreNamed) {
  const auto message = [](const Style& style) { return InvalidArgumentMessage([&] { CheckStyle(style); }); };
  EXPECT_EQ(
      message({.name = "ColumnWise", .axis = "tp"}),
      "unknown style 'ColumnWise': expected one of ColumnParallel, Communication, DataParallel, FullyShard, "
      "Ignore, Offload, On, PinnedOutput, Pipeline, Precision, PrepareInput, PrepareOutput, Recompute, "
      "RowParallel, SequenceParallel, "
      "VocabParallel");
  EXPECT_EQ(message({.name = "FullyShard"}), "FullyShard needs an axis of the mesh, got ''");
  EXPECT_EQ(message({.name = "Ignore", .axis = "dp"}), "Ignore has no axis; got 'dp'");
  EXPECT_EQ(message(ColumnParallel("tp").With("dim", 0)),
            "ColumnParallel has no field \"dim\"; expected input, output");
  EXPECT_EQ(message(Ignore().With("dim", 0)), "Ignore has no field \"dim\"; it has none");
  EXPECT_EQ(message(FullyShard("dp", {.dim = 8})),
            "field \"dim\" of FullyShard: expected a whole number from -8 to 7, got 8");
  EXPECT_EQ(message(FullyShard("dp", {.wrap_from = 0})),
            "field \"wrap_from\" of FullyShard: expected a whole number from 1 to 9007199254740992, got 0");
  EXPECT_EQ(message(FullyShard("dp", {.reshard_to = 1})),
            "field \"reshard_to\" of FullyShard: expected a whole number from 2 to 2147483648, got 1");
  EXPECT_EQ(message(FullyShard("dp", {.wrap = ""})), "field \"wrap\" of FullyShard: expected a word, got ");
  EXPECT_EQ(message(FullyShard("dp").With("reshard", std::string("sometimes"))),
            "field \"reshard\" of FullyShard: expected always or never, got sometimes");
  EXPECT_EQ(message(DataParallel("dp").With("shard_state", 1)),
            "field \"shard_state\" of DataParallel: expected true or false, got 1");
  EXPECT_EQ(message(RowParallel("tp", {.output = Partial()})),
            "field \"output\" of RowParallel: expected Replicate or Shard(DIM), got Partial(sum)");
  EXPECT_EQ(message(PinnedOutput("tp", 1).With("weight", true)),
            "field \"weight\" of PinnedOutput: expected a number, got true");
}

}  // namespace
}  // namespace weft
