// Lists against PyTorch's, against lists written by hand, and what sizes are refused.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/generator.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/golden_schedules.h"

namespace weft {
namespace {

std::string ListOf(const std::string& name, const ScheduleSize& size, int rank) {
  return absl::StrJoin(GenerateSchedule(name, size).ranks[rank], ",",
                       [](std::string* out, const ScheduleItem& item) { out->append(item.ToString()); });
}

bool IsLegal(const std::string& name, const ScheduleSize& size) {
  return MessageOf([&] { GenerateSchedule(name, size); }) == "no error";
}

TEST(GeneratorsTest, ListsAreThoseOfPyTorch) {
  std::set<std::string> names;
  for (const GoldenSchedule& golden : GoldenSchedules()) {
    SCOPED_TRACE(golden.file);
    PipelineSchedule expected = ReadGolden(golden);
    // GPipe and 1F1B come with the reductions behind them.
    expected = Without(expected, {ActionKind::kReduceGrad, ActionKind::kWaitReduceGrad});
    const PipelineSchedule schedule = GenerateSchedule(golden.name, golden.size);
    EXPECT_EQ(schedule.ToString(), expected.ToString());
    EXPECT_EQ(schedule.stage_rank, expected.stage_rank);
    EXPECT_EQ(schedule.num_microbatches, expected.num_microbatches);
    names.insert(golden.name);
  }
  EXPECT_EQ(names.size(), 7u);
}

TEST(GeneratorsTest, CountsOfMicrobatchesAreThoseOfPyTorch) {
  for (const GoldenSchedule& golden : GoldenSchedules()) {
    for (int count = 1; count <= 20; ++count) {
      ScheduleSize size = golden.size;
      size.microbatches = count;
      // PyTorch refuses 1F1B of fewer microbatches than ranks, which runs as any other.
      const bool expected = golden.name == "1f1b" ||
                            std::find(golden.legal.begin(), golden.legal.end(), count) != golden.legal.end();
      EXPECT_EQ(IsLegal(golden.name, size), expected) << golden.file << " with " << count;
    }
  }
}

TEST(GeneratorsTest, ListsWrittenByHand) {
  EXPECT_EQ(ListOf("1f1b", {.ranks = 4, .microbatches = 6}, 0),
            "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0B3,0B4,0B5");
  EXPECT_EQ(ListOf("1f1b", {.ranks = 4, .microbatches = 6}, 2),
            "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2B5");
  EXPECT_EQ(ListOf("1f1b", {.ranks = 4, .microbatches = 6}, 3),
            "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5");
  const ScheduleSize two = {.ranks = 2, .chunks = 2, .microbatches = 4};
  EXPECT_EQ(ListOf("interleaved", two, 0), "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3");
  EXPECT_EQ(ListOf("interleaved", two, 1), "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3");
  EXPECT_EQ(ListOf("looped_bfs", {.ranks = 2, .microbatches = 2}, 0), "0F0,0F1,2F0,2F1,2B1,2B0,0B1,0B0");
  EXPECT_EQ(ListOf("looped_bfs", {.ranks = 2, .microbatches = 2}, 1), "1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0");
  const ScheduleSize four = {.ranks = 4, .microbatches = 4};
  EXPECT_EQ(ListOf("zb_h1", four, 0), "0F0,0F1,0F2,0F3,0I0,0W0,0I1,0W1,0I2,0W2,0I3,0W3");
  EXPECT_EQ(ListOf("zb_h1", four, 1), "1F0,1F1,1F2,1I0,1F3,1I1,1W0,1I2,1W1,1I3,1W2,1W3");
  EXPECT_EQ(ListOf("zb_h1", four, 2), "2F0,2F1,2I0,2F2,2I1,2F3,2I2,2W0,2I3,2W1,2W2,2W3");
  EXPECT_EQ(ListOf("zb_h1", four, 3), "3F0,3I0,3F1,3I1,3F2,3I2,3F3,3I3,3W0,3W1,3W2,3W3");
  EXPECT_EQ(
      ListOf("zbv", two, 0),
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0I1,0W1,3F3,3I3,3W3,0I2,0W2,0I3,0W3");
  EXPECT_EQ(
      ListOf("zbv", two, 1),
      "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,2I2,2W2,1I2,2I3,1I3,1W2,2W3,1W3");
  EXPECT_EQ(ListOf("dualpipev", two, 0),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,"
            "3B3,0I2,0W2,"
            "0I3,0W3");
  EXPECT_EQ(ListOf("dualpipev", two, 1),
            "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,"
            "2I3,1I3,2W3,"
            "1W3");
  EXPECT_EQ(ListOf("pipedream", {.ranks = 2, .microbatches = 3}, 0),
            "0F0,0F1,0B0,0OPT,0F2,0B1,0OPT,0B2,0OPT");
  EXPECT_EQ(ListOf("pipedream_2bw", {.ranks = 2, .microbatches = 4}, 1),
            "1F0,1B0,1F1,1B1,1OPT,1F2,1B2,1F3,1B3,1OPT");
}

TEST(GeneratorsTest, AllAreThere) {
  std::vector<std::string> names;
  for (const ScheduleGenerator& generator : AllSchedules()) {
    names.push_back(generator.name);
    EXPECT_FALSE(generator.summary.empty()) << generator.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"1f1b", "dualpipev", "gpipe", "interleaved", "interleaved_zb",
                                             "looped_bfs", "pipedream", "pipedream_2bw", "v_half", "v_min",
                                             "zb_h1", "zb_h2", "zbv"}));
}

TEST(GeneratorsTest, WhateverTheSizeTheCheckerTakesThem) {
  for (const ScheduleGenerator& generator : AllSchedules()) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (int chunks : generator.any_chunks ? std::vector<int>{1, 2, 3} : std::vector<int>{0}) {
        int taken = 0;
        for (int microbatches = 1; microbatches <= 20; ++microbatches) {
          const ScheduleSize size = {.ranks = ranks, .chunks = chunks, .microbatches = microbatches};
          if (!IsLegal(generator.name, size)) continue;
          ++taken;
          const ScheduleCertificate certificate = CheckSchedule(GenerateSchedule(generator.name, size));
          EXPECT_TRUE(certificate.ok)
              << generator.name << " of " << ranks << " ranks, " << chunks << " chunks, " << microbatches
              << " microbatches: " << certificate.error;
        }
        EXPECT_GE(taken, 2) << generator.name << " of " << ranks << " ranks";
      }
    }
  }
}

TEST(GeneratorsTest, ManyMicrobatchesTakeNoTime) {
  for (const ScheduleGenerator& generator : AllSchedules()) {
    const PipelineSchedule schedule = GenerateSchedule(generator.name, {.ranks = 16, .microbatches = 512});
    const ScheduleCertificate certificate = CheckSchedule(schedule);
    EXPECT_TRUE(certificate.ok) << generator.name << ": " << certificate.error;
    EXPECT_EQ(schedule.Contains(ActionKind::kOpt), generator.updates_within_step) << generator.name;
  }
}

TEST(GeneratorsTest, WhatIsRefusedAndWhatIsLegalNearby) {
  const auto message = [](const std::string& name, const ScheduleSize& size) {
    return InvalidArgumentMessage([&] { GenerateSchedule(name, size); });
  };
  EXPECT_EQ(message("interleaved", {.ranks = 4, .microbatches = 9}),
            "schedule interleaved with 4 ranks: expected microbatches in a multiple of their rounds, max(1, "
            "microbatches / "
            "ranks rounded down), got 9; the nearest legal counts are 8 and 10");
  EXPECT_EQ(message("dualpipev", {.ranks = 4, .microbatches = 7}),
            "schedule dualpipev with 4 ranks: expected at least twice as many microbatches as ranks, got 7; "
            "the nearest "
            "legal count is 8");
  // 2 * 1000 stages times 2000 microbatches are as many as are taken: a rank more has none.
  EXPECT_EQ(
      message("dualpipev", {.ranks = 1000, .microbatches = 7}),
      "schedule dualpipev with 1000 ranks: expected at least twice as many microbatches as ranks, got 7; "
      "the nearest legal count is 2000");
  EXPECT_EQ(
      message("dualpipev", {.ranks = 1001, .microbatches = 7}),
      "schedule dualpipev with 1001 ranks: expected at least twice as many microbatches as ranks, got 7; "
      "no count will do: with 2002 stages at most 1998 are taken");
  EXPECT_EQ(
      message("dualpipev", {.ranks = 6000, .microbatches = 7}),
      "schedule dualpipev with 6000 ranks: expected at least twice as many microbatches as ranks, got 7; "
      "no count will do: with 12000 stages at most 333 are taken");
  EXPECT_EQ(message("pipedream_2bw", {.ranks = 4, .microbatches = 6}),
            "schedule pipedream_2bw with 4 ranks: expected microbatches in a multiple of the ranks, got 6; "
            "the nearest "
            "legal counts are 4 and 8");
  EXPECT_EQ(message("2f2b", {}),
            "unknown schedule '2f2b': expected one of 1f1b, dualpipev, gpipe, interleaved, interleaved_zb, "
            "looped_bfs, "
            "pipedream, pipedream_2bw, v_half, v_min, zb_h1, zb_h2, zbv");
  EXPECT_EQ(message("1f1b", {.ranks = 0}), "schedule 1f1b: expected 1 to 10000 ranks, got 0");
  EXPECT_EQ(message("1f1b", {.microbatches = 0}), "schedule 1f1b: expected 1 to 10000 microbatches, got 0");
  EXPECT_EQ(message("gpipe", {.ranks = 1000, .microbatches = 5000}),
            "schedule gpipe: expected at most 4000000 stages times microbatches, got 5000000");
  EXPECT_EQ(message("1f1b", {.chunks = 2}), "schedule 1f1b has 1 chunk per rank, got 2");
  EXPECT_EQ(message("zbv", {.chunks = 1}), "schedule zbv has 2 chunks per rank, got 1");
  EXPECT_EQ(message("interleaved", {.chunks = -1}),
            "schedule interleaved: expected 1 to 10000 chunks per rank, got -1");
}

}  // namespace
}  // namespace weft
