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
  EXPECT_EQ(message("{entries: []}"),
            "plan: not valid JSON: expected an object with an array \"entries\", got '{entries: []}'");
  EXPECT_EQ(message(""), "plan: not valid JSON: expected an object with an array \"entries\", got ''");
  EXPECT_EQ(message("{\n  \"entries\": [a, b, c],\n  \"scheduler\": {}}"),
            "plan: not valid JSON: expected an object with an array \"entries\", got '{   \"entries\": "
            "[a, b, c],   \"scheduler\":...'");
  EXPECT_EQ(message("[]"), "plan: expected an object with an array \"entries\", got []");
  EXPECT_EQ(message(R"json({"entries": {}})json"),
            "plan: expected an object with an array \"entries\", got {\"entries\":{}}");
  // Readers of JSON would take the last.
  EXPECT_EQ(message(R"json({"entries": [{"path": "", "style": "Ignore"}], "entries": []})json"),
            "plan: key \"entries\" is given twice");
  EXPECT_EQ(message(R"json({"entries": [{"path": "a", "style": "Ignore", "path": "b"}]})json"),
            "plan: key \"path\" is given twice");
  EXPECT_EQ(message(R"json({"entries": [], "scheduler": {"prefetch": 1, "prefetch": 2}})json"),
            "plan: key \"prefetch\" is given twice");
}

TEST(PlanTest, BadEntriesAreNamed) {
  const auto message = [](const std::string& entry) {
    const std::string good = R"json({"path": "", "style": "DataParallel", "axis": "dp"})json";
    return InvalidArgumentMessage([&] { Plan::FromJson("{\"entries\": [" + good + ", " + entry + "]}"); });
  };
  EXPECT_EQ(message("3"), "plan entry 1: expected an object, got number");
  EXPECT_EQ(message(R"json({"path": "", "style": "DataParallel"})json"),
            "plan entry 1: expected a text field \"axis\", got none");
  EXPECT_EQ(message(R"json({"path": 1, "style": "DataParallel", "axis": "dp"})json"),
            "plan entry 1: expected a text field \"path\", got 1");
  EXPECT_EQ(message(R"json({"path": "", "style": "DataParallel", "axis": "dp", "outputs": "Shard(1)"})json"),
            "plan entry 1: DataParallel has no field \"outputs\"; expected path, style, axis, input, output, "
            "shard_state, shard_gradient");
  EXPECT_EQ(message(R"json({"path": "", "style": "ZeRO", "axis": "dp"})json"),
            "plan entry 1, field \"style\": unknown style 'ZeRO': expected one of ColumnParallel, "
            "Communication, DataParallel, "
            "FullyShard, Ignore, Offload, On, Pipeline, Precision, PrepareInput, PrepareOutput, Recompute, "
            "RowParallel, SequenceParallel, "
            "VocabParallel");
  EXPECT_EQ(message(R"json({"path": "", "style": "DataParallel", "axis": "dp", "output": 1})json"),
            "plan entry 1, field \"output\": expected Replicate or Shard(DIM), got 1");
  for (const std::string dim :
       {"\"1\"", "1.5", "8", "-9", "4294967296", "18446744073709551615", "null", "true"}) {
    EXPECT_EQ(message(R"json({"path": "", "style": "FullyShard", "axis": "dp", "dim": )json" + dim + "}"),
              "plan entry 1, field \"dim\": expected a whole number from -8 to 7, got " + dim);
  }
  for (const std::string placement : {"Partial(sum)", "Shard(x)", "Shard(1", "shard(1)", "Shard()", ""}) {
    EXPECT_EQ(message(R"json({"path": "", "style": "DataParallel", "axis": "dp", "input": ")json" +
                      placement + "\"}"),
              "plan entry 1, field \"input\": expected Replicate or Shard(DIM), got \"" + placement + "\"");
  }
}

TEST(PlanTest, EveryFieldRoundTrips) {
  Plan plan = {
      {"a", DataParallel("x", {.input = Shard(1), .shard_state = true})},
      {"b", DataParallel("x", {.shard_gradient = true})},
      {"c", FullyShard("x", {.reshard = Reshard::kNever, .wrap_from = 1'000'000, .dim = -1})},
      {"d", FullyShard("x").With("reshard", std::string("always"))},
      {"d", FullyShard("y", {.reshard_to = 4, .wrap = "Block"})},
      {"e.weight", Ignore()},
  };
  for (const bool overlap : {false, true}) {
    plan.set_scheduler(
        {.bucket_mb = 0.5, .prefetch = 2, .overlap = overlap, .find_unused = true, .lane_priority = overlap});
    EXPECT_EQ(Plan::FromJson(plan.ToJson()), plan);
  }
  EXPECT_EQ(
      (Plan{{"", Ignore()}, {"", FullyShard("dp", {.reshard = Reshard::kNever, .wrap_from = 3})}}).ToJson(),
      R"json({
  "entries": [
    {
      "path": "",
      "style": "Ignore"
    },
    {
      "path": "",
      "style": "FullyShard",
      "axis": "dp",
      "reshard": "never",
      "wrap_from": 3
    }
  ]
})json");
}

TEST(PlanTest, SchedulerOptions) {
  EXPECT_EQ(
      Plan().scheduler(),
      (SchedulerOptions{
          .bucket_mb = 25, .prefetch = 1, .overlap = true, .find_unused = false, .lane_priority = false}));
  Plan plan;
  plan.set_scheduler({.bucket_mb = 10, .overlap = false});
  EXPECT_EQ(plan.scheduler(), (SchedulerOptions{.bucket_mb = 10, .overlap = false}));
  EXPECT_EQ(plan.ToString(), "scheduler: bucket_mb=10, overlap=false\n");
  EXPECT_EQ(plan.ToJson(), R"json({
  "entries": [],
  "scheduler": {
    "bucket_mb": 10.0,
    "overlap": false
  }
})json");
  plan.set_scheduler(SchedulerOptions{.prefetch = 3});  // all of them
  EXPECT_EQ(
      plan.scheduler_choices(),
      (SchedulerChoices{
          .bucket_mb = 25, .prefetch = 3, .overlap = true, .find_unused = false, .lane_priority = false}));
  plan.set_scheduler({.bucket_mb = 10, .overlap = false});
  // Merged field by field: a default that nobody chose does not win over a choice.
  Plan later;
  later.set_scheduler({.bucket_mb = 25, .prefetch = 0});
  EXPECT_EQ(plan.Merge(later).scheduler_choices(),
            (SchedulerChoices{.bucket_mb = 25, .prefetch = 0, .overlap = false}));
  EXPECT_EQ(later.Merge(plan).scheduler_choices(),
            (SchedulerChoices{.bucket_mb = 10, .prefetch = 0, .overlap = false}));
  EXPECT_EQ(plan.Merge({}), plan);
  EXPECT_NE(plan, Plan());
}

TEST(PlanTest, BadSchedulerOptionsAreNamed) {
  const auto chosen = [](const SchedulerChoices& choices) {
    return InvalidArgumentMessage([&] { Plan().set_scheduler(choices); });
  };
  EXPECT_EQ(chosen({.bucket_mb = 0}), "scheduler, field \"bucket_mb\": expected a number above 0, got 0");
  EXPECT_EQ(chosen({.bucket_mb = -1.5}),
            "scheduler, field \"bucket_mb\": expected a number above 0, got -1.5");
  EXPECT_EQ(chosen({.prefetch = -1}),
            "scheduler, field \"prefetch\": expected a whole number of at least 0, got -1");
  const auto read = [](const std::string& scheduler) {
    return InvalidArgumentMessage(
        [&] { Plan::FromJson("{\"entries\": [], \"scheduler\": " + scheduler + "}"); });
  };
  EXPECT_EQ(read("3"), "plan, key \"scheduler\": expected an object, got number");
  EXPECT_EQ(read(R"json({"bucket": 3})json"),
            "scheduler: unknown field \"bucket\"; expected bucket_mb, prefetch, overlap, find_unused, "
            "lane_priority");
  EXPECT_EQ(read(R"json({"bucket_mb": "3"})json"),
            "scheduler, field \"bucket_mb\": expected a number above 0, got \"3\"");
  EXPECT_EQ(read(R"json({"bucket_mb": -3})json"),
            "scheduler, field \"bucket_mb\": expected a number above 0, got -3");
  for (const std::string prefetch : {"1.5", "-1", "true", "4294967296", "-4294967296"}) {
    EXPECT_EQ(read("{\"prefetch\": " + prefetch + "}"),
              "scheduler, field \"prefetch\": expected a whole number of at least 0, got " + prefetch);
  }
  EXPECT_EQ(read(R"json({"overlap": 1})json"), "scheduler, field \"overlap\": expected true or false, got 1");
  EXPECT_EQ(read(R"json({"lane_priority": 1})json"),
            "scheduler, field \"lane_priority\": expected true or false, got 1");
  const std::string alone =
      "scheduler: lane_priority=true: expected overlap=true, got overlap=false: one operation runs at a time "
      "then";
  EXPECT_EQ(read(R"json({"overlap": false, "lane_priority": true})json"), alone);
  EXPECT_EQ(InvalidArgumentMessage([] {
              Plan plan, other;
              plan.set_scheduler({.lane_priority = true});
              other.set_scheduler({.overlap = false});
              plan.Merge(other);
            }),
            alone);
  EXPECT_EQ(InvalidArgumentMessage([] { Plan::FromJson(R"json({"entries": [], "schedule": {}})json"); }),
            "plan: unknown key \"schedule\"; expected entries, scheduler");
}

TEST(PlanTest, MergeKeepsTheOrder) {
  const Plan a = {{"x", ColumnParallel("tp")}};
  const Plan b = {{"", FullyShard("dp")}};
  EXPECT_EQ(a.Merge(b), (Plan{{"x", ColumnParallel("tp")}, {"", FullyShard("dp")}}));
  EXPECT_EQ(b.Merge(a), (Plan{{"", FullyShard("dp")}, {"x", ColumnParallel("tp")}}));
  EXPECT_NE(a.Merge(b), b.Merge(a));
  EXPECT_EQ(a.Merge({}), a);
}

}  // namespace
}  // namespace weft
