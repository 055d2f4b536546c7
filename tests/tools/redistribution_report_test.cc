#include "tools/redistribution_report.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/message_of.h"

namespace weft {
namespace {

RedistributionReport Report(absl::string_view mesh, absl::string_view shape, absl::string_view from,
                            absl::string_view to, const PlanOptions& options = {}) {
  const RedistributionQuery query = ParseRedistributionQuery(mesh, shape, "f32", from, to);
  return ReportRedistribution(query, CostModel(query.mesh), options);
}

// Every field against one that is derived here.
TEST(RedistributionReportTest, FieldsByHand) {
  const RedistributionReport report = Report("a=4,b=4", "16,16", "[a.b, -]", "[-, b]");
  // First b moves its rows for columns: 3 of 4 quarters of 16 elements, then a gathers 3 x 16 more.
  EXPECT_EQ(report.steps, (std::vector<StepReport>{
                              {"all_to_all", {"b"}, "[a, b]", 12 * 4, 16 * 12 * 4, 5 + 3 * 5 + 48e-4},
                              {"all_gather", {"a"}, "[-, b]", 48 * 4, 16 * 48 * 4, 5 + 2 * 5 + 192e-4}}));
  EXPECT_EQ(report.worst_rank_bytes, 60 * 4);
  EXPECT_EQ(report.total_bytes, 16 * 60 * 4);
  EXPECT_DOUBLE_EQ(report.fraction, 60.0 / 256);
  EXPECT_DOUBLE_EQ(report.predicted_us, 35 + 240e-4);
  EXPECT_EQ(report.bound_bytes, 60 * 4);
  EXPECT_EQ(report.greedy_bytes, 60 * 4);
  // The caller's 16, the 16 in between, and 64 at the end, where rows arrive in place.
  EXPECT_EQ(report.peak_bytes, (16 + 16 + 64) * 4);
}

TEST(RedistributionReportTest, NothingToDoAndNothingThere) {
  const RedistributionReport same = Report("a=4", "8,8", "[a, -]", "[a, -]");
  EXPECT_EQ(same.ToJson(),
            "{\"steps\":[],\"worst_rank_bytes\":0,\"total_bytes\":0,\"fraction\":0.0,\"peak_bytes\":64,"
            "\"predicted_us\":0.0,\"greedy_bytes\":0,\"bound_bytes\":0}");
  EXPECT_NE(same.ToText().find("nothing moves"), std::string::npos);
  EXPECT_EQ(Report("a=4", "0,8", "[a, -]", "[-, -]").fraction, 0);
}

TEST(RedistributionReportTest, JsonHoldsTheReport) {
  const RedistributionReport report =
      Report("a=4,b=4", "64,64", "[a, b]", "[b, a]", {.objective = PlanObjective::kBytes});
  const nlohmann::json json = nlohmann::json::parse(report.ToJson());
  ASSERT_EQ(json["steps"].size(), 1u);
  EXPECT_EQ(json["steps"][0]["kind"], "permute");
  EXPECT_EQ(json["steps"][0]["axes"], (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(json["steps"][0]["result"], "[b, a]");
  EXPECT_EQ(json["worst_rank_bytes"], 64 * 64 * 4 / 16);
  EXPECT_EQ(json["total_bytes"], 12 * 64 * 64 * 4 / 16);  // the four on the diagonal lack nothing
  EXPECT_EQ(json["fraction"], 1.0 / 16);
  EXPECT_EQ(json["predicted_us"], report.predicted_us);
}

TEST(RedistributionReportTest, TextForms) {
  const auto query = [](absl::string_view from) {
    return ParseRedistributionQuery("a=2, b=2", " 4, 6", "bf16", from, "[-,-]");
  };
  EXPECT_EQ(query("[a.b,-]").from, query(" [ a . b , - ] ").from);
  EXPECT_EQ(query("P{a:max}").from, query("[-, -] P{a:max}").from);
  EXPECT_EQ(query("[a, -]").type, (TensorType{DType::kBF16, {4, 6}}));
  EXPECT_EQ(ParseRedistributionQuery("a=2", "", "f32", "P{a}", "[]").from.ToString(), "[] P{a0}");
}

// Bytes of all ranks and of all steps are added up in 64 bits.
TEST(RedistributionReportTest, WhatCannotBeCounted) {
  const auto message = [](absl::string_view shape) {
    return MessageOf([&] { ParseRedistributionQuery("a=4", shape, "f32", "[a, -]", "[-, -]"); });
  };
  const std::string expected = " on mesh a=4: expected at most 2^58 bytes, if each rank had the whole";
  for (const std::string shape :
       {"9223372036854775807, 1", "3037000500, 3037000500", "18014398509481985, 1"}) {
    EXPECT_EQ(message(shape), "shape f32[" + shape + "]" + expected);
  }
  // One without an element has extents, too, and they are cut into pieces.
  EXPECT_EQ(message("9223372036854775807, 0"), "shape f32[9223372036854775807, 0]" + expected);
  const RedistributionReport most = Report("a=4", "18014398509481984", "P{a}", "[-]");  // 2^54 of 4 bytes
  EXPECT_EQ(most.total_bytes, 4 * 2 * (int64_t{3} << 54));  // each rank sends three quarters twice
  EXPECT_EQ(most.fraction, 1.5);
}

TEST(RedistributionReportTest, Misuse) {
  EXPECT_EQ(MessageOf([] { Report("a=2", "4,x", "[a, -]", "[-, -]"); }),
            "cannot read shape \"4,x\": expected extents separated by commas, got 'x'");
  EXPECT_EQ(MessageOf([] { Report("a=2", "4,-1", "[a, -]", "[-, -]"); }),
            "cannot read shape \"4,-1\": expected extents separated by commas, got '-1'");
  EXPECT_EQ(MessageOf([] { Report("a=2", "4", "[a, -]", "[-]"); }),
            "layout [a, -] has 2 dims, but the shape is [4]");
}

}  // namespace
}  // namespace weft
