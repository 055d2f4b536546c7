#include "tools/faults/chaos_report.h"

#include <chrono>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

// Figures and lines of `times`, at a suspicion time of 2 s.
struct Summary {
  ChaosReport report;
  std::vector<std::string> lines;
};
Summary SummaryOf(const RecoveryTimes& times) {
  Summary summary;
  times.Summarize(
      milliseconds(2000), [&](const std::string& line) { summary.lines.push_back(line); }, &summary.report);
  return summary;
}

RecoveryTimes::Clock::time_point At(double seconds) {
  return RecoveryTimes::Clock::time_point(milliseconds(static_cast<int64_t>(1000 * seconds)));
}

// A fault, and a step so long after it.
void Recover(RecoveryTimes* times, Fault fault, double seconds) {
  times->Strike(fault, At(100));
  EXPECT_EQ(times->Answer(At(100 + seconds)), seconds);
}

TEST(ChaosReportTest, TheWorstIsHeldAgainstTheTargetOfItsKind) {
  RecoveryTimes times;
  for (const double seconds : {4.5, 1.0, 2.0}) Recover(&times, Fault::kRank, seconds);
  Recover(&times, Fault::kStop, 6.5);
  Recover(&times, Fault::kAgent, 9.0);
  const Summary held = SummaryOf(times);
  EXPECT_THAT(held.lines,
              ElementsAre("rank: 3 times, a step 2.00 s later (median; worst 4.50 s; target 5.0 s, held)",
                          "stop: 1 times, a step 6.50 s later (median; worst 6.50 s; target 7.0 s, held)",
                          "agent: 1 times, a step 9.00 s later (median; worst 9.00 s)"));
  EXPECT_TRUE(held.report.within_target);
  EXPECT_EQ(held.report.median_s, 4.5);
  EXPECT_EQ(held.report.worst_s, 9);
  Recover(&times, Fault::kRank, 5.25);
  const Summary missed = SummaryOf(times);
  EXPECT_EQ(missed.lines[0],
            "rank: 4 times, a step 4.50 s later (median; worst 5.25 s; target 5.0 s, MISSED)");
  EXPECT_FALSE(missed.report.within_target);
}

// Each fault has waited from its own moment, however many followed; not where a rank had to be missed meanwhile, or a launcher
// started again from outside. The last alone is held to the target, which is one fault's.
TEST(ChaosReportTest, FaultsBeforeOneStepHaveATimeEach) {
  RecoveryTimes times;
  for (const double at : {1.0, 1.5, 2.0}) times.Strike(Fault::kRank, At(at));
  EXPECT_EQ(times.num_waiting(), 3);
  EXPECT_EQ(times.last_strike(), At(2));
  EXPECT_EQ(times.Answer(At(5.5)), 3.5);
  EXPECT_EQ(times.num_waiting(), 0);
  times.Strike(Fault::kRank, At(10));  // no time
  times.Strike(Fault::kStop, At(11));
  times.Strike(Fault::kRank, At(12));
  EXPECT_EQ(times.Answer(At(16)), 4);
  EXPECT_THAT(
      SummaryOf(times).lines,
      ElementsAre("rank: 2 times, a step 4.00 s later (median; worst 4.00 s; target 5.0 s, held)",
                  "rank, ranks killed before the step: 2 times, a step 4.50 s later (median; worst 4.50 s)",
                  "stop, ranks killed before the step: 1 times, a step 5.00 s later (median; worst 5.00 s)"));
  times.Strike(Fault::kRank, At(20));
  times.Strike(Fault::kRank, At(24));
  EXPECT_EQ(times.Answer(At(25.25)), 1.25);
  const Summary held = SummaryOf(times);
  EXPECT_EQ(held.report.worst_s, 5.25);
  EXPECT_TRUE(held.report.within_target);
  times.Strike(Fault::kRank, At(30));
  times.Strike(Fault::kRank, At(34));
  EXPECT_EQ(times.Answer(At(39.25)), 5.25);
  EXPECT_FALSE(SummaryOf(times).report.within_target);
}

TEST(ChaosReportTest, NobodyWaitsForALongerTimeThanWasPossible) {
  RecoveryTimes times;
  times.Strike(Fault::kRank, At(1));
  times.Strike(Fault::kRank, At(4));
  times.Postpone(At(3));
  EXPECT_EQ(times.Answer(At(5)), 1);
  EXPECT_EQ(SummaryOf(times).report.worst_s, 2);
  times.Strike(Fault::kRank, At(10));
  times.Postpone(At(12));
  EXPECT_EQ(times.Answer(At(11)), 0);
}

TEST(ChaosReportTest, PartsStandApart) {
  RecoveryTimes times;
  const auto at = [](int ms) { return RecoveryTimes::Clock::time_point(milliseconds(ms)); };
  Recover(&times, Fault::kRank, 1);
  times.AddParts({at(100), at(350), at(400), at(1100)});
  times.AddParts(
      {at(100), at(50), at(300), at(400)});  // of a node that was frozen until after its ranks were there
  times.AddParts({at(0), at(1000), at(2000), at(3000)});
  const Summary summary = SummaryOf(times);
  EXPECT_EQ(summary.report.restart_s, 0.25);
  EXPECT_EQ(summary.report.meet_s, 0.25);
  EXPECT_EQ(summary.report.load_s, 0.7);
  EXPECT_EQ(summary.lines.back(),
            "of them 0.25 s until all ranks run, 0.25 s until they have met, 0.70 s until a step (medians)");
}

TEST(ChaosReportTest, WhatIsSkippedIsNoLossUnlessItIsAll) {
  ChaosReport report = {.planned = 8, .kills = 5, .recovered = 5, .equal = true, .skipped = 3};
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(
      report.ToJson(),
      R"({"kills":5,"recovered":5,"equal":true,"median_s":0.0,"worst_s":0.0,"left_behind":0,"in_save":0,)"
      R"("in_restart":0,"skipped":3,"restart_s":0.0,"meet_s":0.0,"load_s":0.0,"within_target":true})");
  report.skipped = 2;
  EXPECT_FALSE(report.ok());
  EXPECT_FALSE((ChaosReport{.planned = 3, .equal = true, .skipped = 3}).ok());
}

}  // namespace
}  // namespace weft
