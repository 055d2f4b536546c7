// Communication as a column of plans: how it is written, and what it refuses.

#include <string>

#include "absl/strings/match.h"
#include "dtensor/nn/gpt.h"
#include "dtensor/optim/adamw.h"
#include "dtensor/optim/loss_scale.h"
#include "examples/gpt/gpt_plan.h"
#include "gmock/gmock.h"
#include "parallel/parallelize.h"
#include "parallel/trainer.h"
#include "runtime/launch/run_ranks.h"
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
  EXPECT_EQ(message("none(1)"),
            "communication 'none(1)': unknown method 'none': expected one of bf16, f16, int8, "
            "none, onebit, powersgd, randomk, topk");
  EXPECT_EQ(InvalidArgumentMessage([] { CheckStyle(Style{.name = "Communication"}); }),
            "Communication needs a method: \"bf16\", \"topk(0.01)\"");
  EXPECT_THAT(InvalidArgumentMessage([] {
                Plan::FromJson(R"({"entries": [{"path": "", "style": "Communication", "method": 3}]})");
              }),
              HasSubstr("field \"method\": expected a word, got 3"));
}

TEST(CommunicationPlanTest, WhatIsNotSummedWholeIsRefused) {
  const auto message = [](const std::string& mesh_text, DataPlan data, const Plan& more) {
    const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
    Gpt model(SmallGptConfig());
    return InvalidArgumentMessage(
        [&] { ResolvePlan(model, mesh, GptPlan(mesh, data, /*sequence_parallel=*/false).Merge(more)); });
  };
  const Plan compressed = {{"", Communication("int8")}};
  EXPECT_EQ(message("dp=2", DataPlan::kFsdp, compressed),
            "Communication(method=int8) on 'wpe': its gradient is reduce-scattered over axis 'dp' by "
            "FullyShard(dp); expected one that is summed whole: DataParallel without shard_state and "
            "shard_gradient, "
            "or Communication(\"none\")");
  EXPECT_THAT(message("dp=2", DataPlan::kZero1, compressed), HasSubstr("DataParallel(dp, shard_state=true)"));
  EXPECT_THAT(message("dp=2", DataPlan::kZero2, compressed),
              HasSubstr("DataParallel(dp, shard_gradient=true)"));
  EXPECT_THAT(message("replica=2,shard=2", DataPlan::kHsdp, compressed), HasSubstr("over axis 'shard'"));
  EXPECT_EQ(message("dp=2", DataPlan::kFsdp, {{"", Communication("none")}}), "no error");
  EXPECT_EQ(message("tp=2", DataPlan::kDdp, compressed), "no error");
  EXPECT_EQ(message("dp=2", DataPlan::kDdp, compressed.Merge(Plan{{"", Pipeline("dp")}})).substr(0, 5),
            "plan ");
  const DeviceMesh mesh = DeviceMesh::Parse("pp=2,dp=2");
  Gpt model(SmallGptConfig());
  EXPECT_EQ(InvalidArgumentMessage([&] {
              ResolvePlan(model, mesh,
                          GptPlan(mesh, DataPlan::kDdp, false, {}, PipelineOptions()).Merge(compressed));
            }),
            "Communication(method=int8) on 'wpe': gradients of a pipeline's stages are summed exactly; "
            "expected none");
}

TEST(CommunicationPlanTest, ScaledLossesAreRefused) {
  RunRanks(2, [](World& world) {
    const DeviceMesh mesh = DeviceMesh::Parse("dp=2");
    Gpt model(SmallGptConfig());
    Parallelize(model, world, mesh,
                GptPlan(mesh, DataPlan::kDdp, false).Merge(Plan{{"", Communication("int8")}}),
                {.compute_dtype = DType::kF16});
    AdamW optimizer(model.AllParameters(), {});
    LossScale scale(model.context(), {});
    EXPECT_THAT(InvalidArgumentMessage([&] { Trainer(model, optimizer, {.loss_scale = &scale}); }),
                HasSubstr("Trainer: loss_scale and Communication: expected one of them"));
  });
}

}  // namespace
}  // namespace weft
