#include "examples/gpt/gpt_plan.h"

#include "gtest/gtest.h"
#include "parallel/parallelize.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

std::string PlanText(const std::string& mesh, DataPlan data, bool sequence_parallel = false) {
  return GptPlan(DeviceMesh::Parse(mesh), data, sequence_parallel).ToString();
}

TEST(GptPlanTest, FollowsTheAxesOfTheMesh) {
  EXPECT_EQ(PlanText("", DataPlan::kDdp), "");
  EXPECT_EQ(PlanText("dp=2", DataPlan::kDdp), "\"\": DataParallel(dp)\n");
  EXPECT_EQ(PlanText("dp=1", DataPlan::kFsdp), "\"blocks.*\": FullyShard(dp)\n\"\": FullyShard(dp)\n");
  const std::string tensor_parallel =
      "\"wte\": VocabParallel(tp)\n"
      "\"blocks.*.attn.qkv\": ColumnParallel(tp)\n"
      "\"blocks.*.attn.proj\": RowParallel(tp)\n"
      "\"blocks.*.mlp.up\": ColumnParallel(tp)\n"
      "\"blocks.*.mlp.down\": RowParallel(tp)\n"
      "\"head\": ColumnParallel(tp)\n";
  EXPECT_EQ(PlanText("tp=4", DataPlan::kDdp), tensor_parallel);
  EXPECT_EQ(PlanText("dp=2,tp=2", DataPlan::kDdp), tensor_parallel + "\"\": DataParallel(dp)\n");
  // The order of axes in the mesh does not matter; tp is outermost where both split a dim.
  EXPECT_EQ(PlanText("tp=2,dp=2", DataPlan::kFsdp),
            tensor_parallel + "\"blocks.*\": FullyShard(dp)\n\"\": FullyShard(dp)\n");
}

TEST(GptPlanTest, SequenceParallelSplitsTheResidualStream) {
  EXPECT_EQ(PlanText("tp=2", DataPlan::kDdp, true),
            "\"wte\": VocabParallel(tp, output=Shard(1))\n"
            "\"blocks.*.attn.qkv\": ColumnParallel(tp)\n"
            "\"blocks.*.attn.proj\": RowParallel(tp, output=Shard(1))\n"
            "\"blocks.*.mlp.up\": ColumnParallel(tp)\n"
            "\"blocks.*.mlp.down\": RowParallel(tp, output=Shard(1))\n"
            "\"head\": ColumnParallel(tp)\n"
            "\"blocks.*.ln_1\": SequenceParallel(tp)\n"
            "\"blocks.*.ln_2\": SequenceParallel(tp)\n"
            "\"ln_f\": SequenceParallel(tp)\n");
}

TEST(GptPlanTest, FitsEveryGpt) {
  for (bool tied : {false, true}) {
    GptConfig config = {
        .vocabulary = 257, .context = 8, .layers = 2, .heads = 4, .dim = 8, .tied_head = tied};
    for (const char* mesh_text : {"", "dp=3", "tp=2", "tp=4", "dp=3,tp=2", "tp=2,dp=3"}) {
      const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
      for (DataPlan data : {DataPlan::kDdp, DataPlan::kFsdp}) {
        for (bool sequence_parallel : {false, true}) {
          if (data == DataPlan::kFsdp && mesh.FindAxis("dp") < 0) continue;
          if (sequence_parallel && mesh.FindAxis("tp") < 0) continue;
          Gpt model(config);
          EXPECT_NO_THROW(ResolvePlan(model, mesh, GptPlan(mesh, data, sequence_parallel))) << mesh_text;
        }
      }
    }
  }
}

TEST(GptPlanTest, MistakesAreNamed) {
  EXPECT_EQ(InvalidArgumentMessage([] { PlanText("dp=2,ep=2", DataPlan::kDdp); }),
            "mesh axis 'ep' means nothing to plan ddp: expected dp, tp or pp, or a plan of your own "
            "(--plan=FILE.json)");
  EXPECT_EQ(InvalidArgumentMessage([] { PlanText("pp=2", DataPlan::kDdp); }),
            "plan ddp: the mesh 'pp=2' has an axis pp, and nothing says how its stages lie");
  EXPECT_EQ(InvalidArgumentMessage([] { PlanText("dp=2", DataPlan::kDdp, true); }),
            "sequence_parallel needs an axis 'tp'; the mesh is 'dp=2'");
  EXPECT_EQ(InvalidArgumentMessage([] { PlanText("tp=2", DataPlan::kFsdp); }),
            "plan fsdp needs an axis 'dp'; the mesh is 'tp=2'");
}

std::string BatchLayoutText(const std::string& mesh_text, const Plan& plan) {
  const DeviceMesh mesh = DeviceMesh::Parse(mesh_text);
  return BatchLayout(mesh, plan).ToString(mesh);
}

TEST(BatchLayoutTest, SplitsTheBatchOverTheDataAxes) {
  EXPECT_EQ(BatchLayoutText("", {}), "[-, -]");
  EXPECT_EQ(BatchLayoutText("dp=2,tp=2", {}), "[-, -]");
  EXPECT_EQ(BatchLayoutText("tp=2", GptPlan(DeviceMesh::Parse("tp=2"), DataPlan::kDdp, true)), "[-, -]");
  for (DataPlan data : {DataPlan::kDdp, DataPlan::kFsdp}) {
    EXPECT_EQ(BatchLayoutText("dp=2,tp=2", GptPlan(DeviceMesh::Parse("dp=2,tp=2"), data, false)), "[dp, -]");
  }
  // Hybrid sharding: in the order of the plan.
  EXPECT_EQ(BatchLayoutText("a=2,b=2", {{"", DataParallel("b")}, {"", FullyShard("a")}}), "[b.a, -]");
  EXPECT_EQ(InvalidArgumentMessage([] {
              BatchLayoutText("a=2", {{"", DataParallel("dp")}});
            }).substr(0, 4),
            "mesh");
}

}  // namespace
}  // namespace weft
