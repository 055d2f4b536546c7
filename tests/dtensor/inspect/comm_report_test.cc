#include "dtensor/inspect/comm_report.h"

#include "dtensor/functions.h"
#include "gmock/gmock.h"
#include "tests/dtensor/sharded_values.h"

namespace weft {
namespace {

using testing::ElementsAre;

// Two gathers over tp in a module, one reduction over dp for a parameter's gradient.
void Communicate(const IntrusivePtr<MeshContext>& context) {
  RankState& state = context->state();
  const Layout whole(2, 2);
  {
    const PathGuard path(state, state.PathId("mlp"));
    for (int i = 0; i < 2; ++i)
      Lay(context, WholeNumbers(DType::kF32, {5, 3}), "[tp, -]").Redistribute(whole);
  }
  const PurposeGuard purpose(state, Purpose::kGrad);
  Lay(context, WholeNumbers(DType::kF32, {5, 3}), "[-, -] P{dp}").Redistribute(whole);
}

const CommRow kGathers = {.kind = "all_gather",
                          .axes = "tp",
                          .purpose = "activation",
                          .path = "mlp",
                          .calls = 2,
                          .num_bytes = 2 * 2 * (5 * 3 * 4)};  // calls, groups of tp, (n-1)S
const CommRow kReduction = {.kind = "all_reduce",
                            .axes = "dp",
                            .purpose = "grad",
                            .path = "",
                            .calls = 1,
                            .num_bytes = 2 * 2 * (5 * 3 * 4)};  // groups of dp, 2(n-1)S

TEST(CommReportTest, EveryRankGetsTheSumOverTheMesh) {
  OnMesh("dp=2,tp=2", [](const IntrusivePtr<MeshContext>& context) {
    Communicate(context);
    const CommReport report = CollectCommReport(*context);
    EXPECT_THAT(report.rows, ElementsAre(kGathers, kReduction));
    EXPECT_EQ(report.TotalBytes(), 480);
    EXPECT_EQ(report.BytesFor(Purpose::kGrad), 240);
    EXPECT_EQ(report.BytesFor(Purpose::kParam), 0);
    // The gathers of the report itself are no part of it, and of a later one as metrics.
    EXPECT_EQ(CollectCommReport(*context).BytesFor(Purpose::kActivation), 240);
    context->world().ledger().Clear();
    EXPECT_TRUE(LocalCommReport(context->state()).rows.empty());
  });
}

// Ranks need not have taken part in the same collectives.
TEST(CommReportTest, RowsOfSomeRanksOnly) {
  OnMesh("a=2,b=2", [](const IntrusivePtr<MeshContext>& context) {
    if (context->coordinate()[0] == 1) context->Group({1}).Barrier();
    const CommReport report = CollectCommReport(*context);
    ASSERT_EQ(report.rows.size(), 1u);
    EXPECT_EQ(report.rows[0].kind, "barrier");
    EXPECT_EQ(report.rows[0].calls, 1);
    EXPECT_EQ(report.rows[0].num_bytes, 0);
  });
}

TEST(CommReportTest, LocallyBytesStandWithTheFirstMemberOfAGroup) {
  OnMesh("dp=2,tp=2", [](const IntrusivePtr<MeshContext>& context) {
    Communicate(context);
    CommRow gathers = kGathers;
    CommRow reduction = kReduction;
    gathers.num_bytes = context->coordinate()[1] == 0 ? 120 : 0;
    reduction.num_bytes = context->coordinate()[0] == 0 ? 120 : 0;
    EXPECT_THAT(LocalCommReport(context->state()).rows, ElementsAre(gathers, reduction));
  });
}

TEST(CommReportTest, NothingMovedOnOneDevice) {
  OnMesh("", [](const IntrusivePtr<MeshContext>& context) {
    EXPECT_EQ(CollectCommReport(*context), CommReport());
    EXPECT_EQ(CommReport().TotalBytes(), 0);
  });
}

TEST(CommReportTest, Table) {
  const CommReport report = {.rows = {kGathers, kReduction}};
  EXPECT_EQ(report.ToTable(),
            "collective      axes     purpose        calls          bytes  module\n"
            "all_gather      tp       activation         2            240  mlp\n"
            "all_reduce      dp       grad               1            240  \n"
            "total                                                    480\n");
}

}  // namespace
}  // namespace weft
