#include "parallel/pipeline/schedule_csv.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

std::string MessageFor(const std::string& text) {
  return InvalidArgumentMessage([&] { ScheduleFromCsv(text, "x.csv"); });
}

TEST(ScheduleCsvTest, ReadsRowsAndSkipsBlankCells) {
  // As PyTorch's csv module ends lines; bubbles are blank.
  const PipelineSchedule schedule = ScheduleFromCsv("0F0,0F1,,, 0B0 ,0B1\r\n,1F0,1B0,1F1,1B1,\r\n", "x.csv");
  EXPECT_EQ(schedule.ToString(), "rank 0: 0F0,0F1,0B0,0B1\nrank 1: 1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(schedule.name, "x.csv");
  EXPECT_EQ(schedule.num_microbatches, 2);
  EXPECT_EQ(schedule.stage_rank, (std::vector<int>{0, 1}));
  EXPECT_EQ(schedule.versions, WeightVersions::kOne);
  EXPECT_EQ(ScheduleToCsv(schedule), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(ScheduleFromCsv(ScheduleToCsv(schedule), "x.csv"), schedule);
}

TEST(ScheduleCsvTest, AStageBelongsToTheRankThatComputesMostOfIt) {
  const PipelineSchedule schedule = ScheduleFromCsv("0F0,0F1,1F0,0B0\n1F1,1B1,1B0,0B1\n,\n\n", "x.csv");
  EXPECT_EQ(schedule.stage_rank, (std::vector<int>{0, 1}));
  EXPECT_EQ(schedule.num_ranks(), 3);  // the third row has cells, though blank ones
}

TEST(ScheduleCsvTest, UpdatesWithinTheStepMeanSeveralVersions) {
  const PipelineSchedule schedule = ScheduleFromCsv("0F0,0B0,0OPT,0F1,0B1,0OPT\n", "x.csv");
  EXPECT_EQ(schedule.versions, WeightVersions::kNewest);
  EXPECT_EQ(schedule.microbatches_per_update, 1);
  EXPECT_EQ(ScheduleFromCsv("0F0,0B0,0F1,0B1,0OPT\n", "x.csv").versions, WeightVersions::kOne);
}

// As PyTorch 2.15 numbers the last stage of 1F1B. Anything else is left as it is, and is the checker's.
TEST(ScheduleCsvTest, TheLastStageOfPyTorchs1F1B) {
  const auto text = [](const std::string& csv) { return ScheduleToCsv(ScheduleFromCsv(csv, "x.csv")); };
  EXPECT_EQ(text("0F0,0F1,0B0,0B1\n1F1,1B0,1F2,1B1,1REDUCE_GRAD\n"),
            "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1REDUCE_GRAD\n");
  EXPECT_EQ(ScheduleFromCsv("0F1,0B0,0F2,0B1\n", "x.csv").num_microbatches, 2);
  for (const char* other : {
           "0F0,0F1,0B0,0B1\n1F1,1B0,1F2,1B2\n",  // a gradient of what there is
           "0F0,0F1,0B0,0B1\n1F2,1B0,1F1,1B1\n",  // another order
           "0F0,0F1,0B0,0B1\n1F1,1B1,1F2,1B0\n",
           "0F0,0F2,0B0,0B1\n1F1,1B0,1F2,1B1\n",      // the first stage, too
           "0F1,0B0,0F2,0B1\n1F0,1B0,1F1,1B1\n",      // the first stage alone
           "0F0,0F1,0B0,0B1\n1F1,1B0,1F2,1B1,1F3\n",  // one too many
       }) {
    EXPECT_EQ(text(other), other);
  }
}

TEST(ScheduleCsvTest, ErrorsNameFileLineAndCell) {
  EXPECT_EQ(
      MessageFor("0F0,0B0\n1F0,,1X0\n"),
      "x.csv:2: cell 3: cannot read \"1X0\": expected [stage][kind][microbatch] such as 2F0, 3SEND_B1 or "
      "(0F3;3B1)OVERLAP_F_B, or [stage][kind] such as 0UNSHARD");
  EXPECT_EQ(MessageFor("0F0,100000F0\n"), "x.csv:1: cell 2: \"100000F0\": expected numbers below 100000");
  EXPECT_EQ(MessageFor("0F0,0B100000\n"), "x.csv:1: cell 2: \"0B100000\": expected numbers below 100000");
  EXPECT_EQ(MessageFor("0F0,0B0\n2F0,2B0\n"),
            "x.csv: there are actions of stage 2, but no rank computes stage 1");
  EXPECT_EQ(MessageFor("0F0,0B99999\n"), "x.csv: 2 actions cannot be 100000 microbatches of 1 stages");
  EXPECT_EQ(MessageFor(" \n\n"), "x.csv: expected one row of actions per rank, got none");
  EXPECT_EQ(MessageFor(""), "x.csv: expected one row of actions per rank, got none");
  EXPECT_EQ(MessageFor(",,\n"), "x.csv: expected actions, got blank cells alone");
}

TEST(ScheduleCsvTest, ReadsFiles) {
  const std::string path = absl::StrCat(testing::TempDir(), "/schedule.csv");
  std::ofstream(path) << "0F0,0B0\n";
  EXPECT_EQ(ReadScheduleCsv(path).name, path);
  EXPECT_EQ(MessageOf([] { ReadScheduleCsv("/nowhere/at/all.csv"); }),
            "cannot read '/nowhere/at/all.csv': No such file or directory");
  // Its first byte belongs to no memory: an I/O error, and not the end.
  EXPECT_EQ(MessageOf([] { ReadScheduleCsv("/proc/self/mem"); }),
            "cannot read '/proc/self/mem': Input/output error");
}

}  // namespace
}  // namespace weft
