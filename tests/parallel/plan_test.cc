#include "parallel/plan.h"

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

Plan Sample() {
  return {{"blocks.*.attn.qkv", ColumnParallel("tp")},
          {"blocks.*.attn.proj", RowParallel("tp", {.output = Shard(1)})},
          {"wte", VocabParallel("tp", {.input = Replicate()})},
          {"head", FullyShard("dp", {.dim = 1})},
          {"", FullyShard("dp")}};
}

TEST(PlanTest, PrintsALineAnEntry) {
  EXPECT_EQ(Sample().ToString(),
            "\"blocks.*.attn.qkv\": ColumnParallel(tp)\n"
            "\"blocks.*.attn.proj\": RowParallel(tp, output=Shard(1))\n"
            "\"wte\": VocabParallel(tp, input=Replicate)\n"
            "\"head\": FullyShard(dp, dim=1)\n"
            "\"\": FullyShard(dp)\n");
  EXPECT_EQ(Plan().ToString(), "");
}

TEST(PlanTest, JsonSaysWhatThePlanSays) {
  EXPECT_EQ(Sample().ToJson(), R"json({
  "entries": [
    {
      "path": "blocks.*.attn.qkv",
      "style": "ColumnParallel",
      "axis": "tp"
    },
    {
      "path": "blocks.*.attn.proj",
      "style": "RowParallel",
      "axis": "tp",
      "output": "Shard(1)"
    },
    {
      "path": "wte",
      "style": "VocabParallel",
      "axis": "tp",
      "input": "Replicate"
    },
    {
      "path": "head",
      "style": "FullyShard",
      "axis": "dp",
      "dim": 1
    },
    {
      "path": "",
      "style": "FullyShard",
      "axis": "dp"
    }
  ]
})json");
}

TEST(PlanTest, JsonRoundTrips) {
  EXPECT_EQ(Plan::FromJson(Sample().ToJson()), Sample());
  EXPECT_EQ(Plan::FromJson(Plan().ToJson()), Plan());
  const Plan last_dim = {{"a", SequenceParallel("x", {.input = Shard(-1), .output = Replicate()})}};
  EXPECT_EQ(Plan::FromJson(last_dim.ToJson()), last_dim);
  // Fields in any order, blanks free.
  EXPECT_EQ(Plan::FromJson(R"json({"entries":[{"axis":"dp","style":"DataParallel","path":""}]})json"),
            (Plan{{"", DataParallel("dp")}}));
}

TEST(PlanTest, BadJsonIsNamed) {
  const auto message = [](const std::string& json) {
    return InvalidArgumentMessage([&] { Plan::FromJson(json); });
  };
  EXPECT_EQ(message("{entries: []}"), "plan: not valid JSON");
  EXPECT_EQ(message(""), "plan: not valid JSON");
  EXPECT_EQ(message("[]"), "plan: expected an object with an array \"entries\"");
  EXPECT_EQ(message(R"json({"entries": {}})json"), "plan: expected an object with an array \"entries\"");
}

TEST(PlanTest, BadEntriesAreNamed) {
  const auto message = [](const std::string& entry) {
    const std::string good = R"json({"path": "", "style": "DataParallel", "axis": "dp"})json";
    return InvalidArgumentMessage([&] { Plan::FromJson("{\"entries\": [" + good + ", " + entry + "]}"); });
  };
  EXPECT_EQ(message("3"), "plan entry 1: expected an object, got number");
  EXPECT_EQ(message(R"json({"path": "", "style": "DataParallel"})json"),
            "plan entry 1: expected a text field \"axis\"");
  EXPECT_EQ(message(R"json({"path": 1, "style": "DataParallel", "axis": "dp"})json"),
            "plan entry 1: expected a text field \"path\"");
  EXPECT_EQ(message(R"json({"path": "", "style": "DataParallel", "axis": "dp", "outputs": "Shard(1)"})json"),
            "plan entry 1: unknown field \"outputs\"; expected path, style, axis, input, output, dim");
  EXPECT_EQ(
      message(R"json({"path": "", "style": "ZeRO", "axis": "dp"})json"),
      "plan entry 1, field \"style\": unknown style 'ZeRO': expected one of ColumnParallel, RowParallel, "
      "VocabParallel, SequenceParallel, DataParallel, FullyShard");
  EXPECT_EQ(message(R"json({"path": "", "style": "DataParallel", "axis": "dp", "output": 1})json"),
            "plan entry 1: expected a text field \"output\"");
  for (const std::string dim : {"\"1\"", "1.5", "8", "-9", "4294967296", "null", "true"}) {
    EXPECT_EQ(message(R"json({"path": "", "style": "FullyShard", "axis": "dp", "dim": )json" + dim + "}"),
              "plan entry 1, field \"dim\": expected a whole number from -8 to 7, got " + dim);
  }
  for (const std::string placement : {"Partial(sum)", "Shard(x)", "Shard(1", "shard(1)", "Shard()", ""}) {
    EXPECT_EQ(message(R"json({"path": "", "style": "DataParallel", "axis": "dp", "input": ")json" +
                      placement + "\"}"),
              "plan entry 1, field \"input\": expected Replicate or Shard(DIM), got '" + placement + "'");
  }
}

TEST(PlanTest, MergeKeepsTheOrder) {
  const Plan a = {{"x", ColumnParallel("tp")}};
  const Plan b = {{"", FullyShard("dp")}};
  EXPECT_EQ(a.Merge(b), (Plan{{"x", ColumnParallel("tp")}, {"", FullyShard("dp")}}));
  EXPECT_EQ(b.Merge(a), (Plan{{"", FullyShard("dp")}, {"x", ColumnParallel("tp")}}));
  EXPECT_NE(a.Merge(b), b.Merge(a));
  EXPECT_EQ(a.Merge({}), a);
}

TEST(PathMatchesTest, Globs) {
  struct Case {
    const char* pattern;
    const char* path;
    bool matches;
  };
  const Case cases[] = {
      {"", "", true},
      {"", "wte", false},
      {"wte", "", false},
      {"wte", "wte", true},
      {"wte", "wte2", false},
      {"w*", "wte", false},  // "*" is a whole component
      {"*", "wte", true},
      {"*", "", false},
      {"*", "a.b", false},
      {"blocks.*", "blocks.11", true},
      {"blocks.*", "blocks", false},
      {"blocks.*", "blocks.0.attn", false},
      {"blocks.*.attn.qkv", "blocks.3.attn.qkv", true},
      {"blocks.*.attn.qkv", "blocks.attn.qkv", false},
      {"*.*", "a.b", true},
      {"**", "", true},
      {"**", "a", true},
      {"**", "a.b.c", true},
      {"a.**", "a", true},
      {"a.**", "a.b.c", true},
      {"a.**", "b.a", false},
      {"**.qkv", "qkv", true},
      {"**.qkv", "blocks.0.attn.qkv", true},
      {"**.qkv", "blocks.0.attn.qkv.weight", false},
      {"blocks.**.up", "blocks.0.mlp.up", true},
      {"blocks.**.up", "blocks.up", true},
      {"**.a.**.a", "a.a", true},
      {"**.a.**.a", "x.a.y.z.a", true},
      {"**.a.**.a", "x.a.y", false},
      {"**.*", "", false},
      {"**.*", "a.b", true},
  };
  for (const Case& c : cases)
    EXPECT_EQ(PathMatches(c.pattern, c.path), c.matches) << c.pattern << " on " << c.path;
}

}  // namespace
}  // namespace weft
