// Communication as a column of plans: how it is written, and what it refuses.

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "dtensor/nn/gpt.h"
#include "examples/gpt/gpt_plan.h"
#include "gmock/gmock.h"
#include "parallel/resolved_plan.h"
#include "tests/message_of.h"
#include "tests/parallel/training_run.h"

namespace weft {
namespace {

using testing::HasSubstr;

TEST(CommunicationPlanTest, PlansHaveIt) {
  const Plan plan = {{"", DataParallel("dp")},
                     {"", Communication("topk(0.01, momentum=0.9)")},
                     {"ln_f", Communication("none")}};
  EXPECT_EQ(Plan::FromJson(plan.ToJson()), plan);
  EXPECT_EQ(plan.entries()[1].style.ToString(), "Communication(method=topk(0.01, momentum=0.9))");
  EXPECT_THAT(plan.ToJson(), HasSubstr("\"method\": \"topk(0.01, momentum=0.9)\""));
  const DeviceMesh mesh = DeviceMesh::Parse("dp=2,tp=2");
  Gpt model(SmallGptConfig());
  const ResolvedPlan resolved = ResolvePlan(model, mesh,
                                            GptPlan(mesh, DataPlan::kDdp, false)
                                                .Merge(Plan{{"", Communication("int8")}})
                                                .Merge(Plan{{"blocks.*.ln_1", Communication("none")}}));
  for (const ResolvedParameter& parameter : resolved.parameters) {
    const bool is_norm =
        absl::StartsWith(parameter.path, "blocks") && absl::StrContains(parameter.path, "ln_1");
    EXPECT_EQ(parameter.communication.compresses(), !is_norm) << parameter.path;
  }
}

TEST(CommunicationPlanTest, BadTextsAreRefused) {
  const auto message = [](const std::string& method) {
    return InvalidArgumentMessage([&] { CheckStyle(Communication(method)); });
  };
  EXPECT_EQ(message("top(1)"),
            "communication 'top(1)': unknown method 'top': expected one of bf16, f16, int8, none, onebit, "
            "powersgd, randomk, topk");
  EXPECT_EQ(message("topk"), "communication 'topk': topk needs 'fraction': a number above 0, at most 1");
  EXPECT_EQ(message("topk(2)"),
            "communication 'topk(2)': argument 'fraction': expected a number above 0, at most 1, got '2'");
  EXPECT_EQ(
      message("topk(0.1, 0.9)"),
      "communication 'topk(0.1, 0.9)': '0.9': expected NAME=VALUE; expected fraction, momentum, masking, "
      "error_feedback");
  EXPECT_EQ(message("topk(0.1, k=2)"),
            "communication 'topk(0.1, k=2)': topk has no argument 'k'; expected fraction, momentum, masking, "
            "error_feedback");
  EXPECT_EQ(message("topk(0.1, fraction=0.2)"),
            "communication 'topk(0.1, fraction=0.2)': argument 'fraction' is given twice");
  EXPECT_EQ(message("topk(0.1, momentum=0.9, error_feedback=false)"),
            "communication 'topk(0.1, momentum=0.9, error_feedback=false)': momentum is of what adds up "
            "until it is "
            "sent; it needs error_feedback");
  EXPECT_EQ(message("powersgd(1.5)"),
            "communication 'powersgd(1.5)': argument 'rank': expected a whole number from 1 to 1024, got "
            "'1.5'");
  EXPECT_EQ(message("int8(error_feedback=yes)"),
            "communication 'int8(error_feedback=yes)': argument 'error_feedback': expected true or false, "
            "got 'yes'");
  EXPECT_EQ(message("int8(64"), "communication 'int8(64': expected NAME or NAME(ARGUMENTS)");
  EXPECT_EQ(message("none(1)"), "communication 'none(1)': none takes no arguments");
  EXPECT_EQ(InvalidArgumentMessage([] { CheckStyle(Style{.name = "Communication"}); }),
            "Communication needs a method: \"bf16\", \"topk(0.01)\"");
  EXPECT_THAT(InvalidArgumentMessage([] {
                Plan::FromJson(R"({"entries": [{"path": "", "style": "Communication", "method": 3}]})");
              }),
              HasSubstr("field \"method\": expected a word, got 3"));
}

// Over the axes that the batch is split over, however gradients rest.
TEST(CommunicationPlanTest, AxesAreThoseOfTheData) {
  const auto axes = [](const std::string& mesh_text, DataPlan data) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    Gpt model(SmallGptConfig());
    std::optional<PipelineOptions> pipeline;
    if (mesh.FindAxis("pp") >= 0) pipeline = PipelineOptions();
    const Plan plan = GptPlan(mesh, data, /*sequence_parallel=*/false, /*blocks=*/{}, pipeline)
                          .Merge(Plan{{"", Communication("int8")}});
    const ResolvedPlan resolved = ResolvePlan(model, mesh, plan);
    for (const ResolvedParameter& parameter : resolved.parameters) {
      EXPECT_EQ(parameter.communication, resolved.parameters[0].communication) << parameter.path;
    }
    return resolved.parameters[0].communication.axes;
  };
  EXPECT_EQ(axes("dp=2", DataPlan::kDdp), AxisList{0});
  EXPECT_EQ(axes("tp=2,dp=2", DataPlan::kZero1), AxisList{1});
  EXPECT_EQ(axes("dp=2", DataPlan::kZero2), AxisList{0});
  EXPECT_EQ(axes("dp=2,tp=2", DataPlan::kFsdp), AxisList{0});
  EXPECT_EQ(axes("replica=2,shard=2", DataPlan::kHsdp), (AxisList{0, 1}));
  EXPECT_EQ(axes("pp=2,dp=2", DataPlan::kFsdp), AxisList{1});
  EXPECT_EQ(axes("tp=2", DataPlan::kDdp), AxisList{});
}

// Residuals of two ranks would go under one name. Where the stages that have it are one rank's there is one.
TEST(CommunicationPlanTest, WhatStagesShareIsRefused) {
  GptConfig config = SmallGptConfig();
  config.tied_head = true;
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2,dp=2");
  const auto message = [&](const PipelineOptions& stages, const Plan& more) {
    Gpt model(config);
    const Plan plan = GptPlan(mesh, DataPlan::kFsdp, /*sequence_parallel=*/false, /*blocks=*/{}, stages);
    return InvalidArgumentMessage([&] { ResolvePlan(model, mesh, plan.Merge(more)); });
  };
  const Plan all = {{"", Communication("int8")}};
  EXPECT_EQ(message({}, all),
            "Communication(method=int8) on 'wte.weight': stages on ranks 0 and 1 of the pipeline have it in "
            "common, and each would keep a residual of its own; expected Communication(\"none\") on it");
  EXPECT_EQ(message({}, all.Merge(Plan{{"wte", Communication("none")}})), "no error");
  config.layers = 4;
  EXPECT_EQ(message({.chunks = 2, .order = StageOrder::kV}, all), "no error");
}

}  // namespace
}  // namespace weft
