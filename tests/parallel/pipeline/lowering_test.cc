#include "parallel/pipeline/lowering.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/schedule_csv.h"
#include "tests/message_of.h"
#include "tests/parallel/pipeline/golden_schedules.h"

namespace weft {
namespace {

TEST(LoweringTest, ListsAreThoseOfPyTorch) {
  std::set<std::string> names;
  for (const GoldenSchedule& golden : GoldenSchedules()) {
    if (!golden.has_lowered) continue;
    SCOPED_TRACE(golden.file);
    EXPECT_EQ(LowerSchedule(GenerateSchedule(golden.name, golden.size)).ToString(),
              ReadGolden(golden, "-comms").ToString());
    names.insert(golden.name);
  }
  EXPECT_EQ(names.size(), 5u);
}

TEST(LoweringTest, WhatPyTorchWritesPassesTheChecker) {
  int files = 0;
  for (const GoldenSchedule& golden : GoldenSchedules()) {
    if (!golden.has_waits) continue;
    const PipelineSchedule schedule = ReadGolden(golden, "-waits");
    const ScheduleCertificate certificate = CheckSchedule(schedule);
    EXPECT_TRUE(certificate.ok) << golden.file << ": " << certificate.error;
    EXPECT_EQ(certificate.holdings, CheckSchedule(GenerateSchedule(golden.name, golden.size)).holdings);
    EXPECT_NE(ScheduleToCsv(schedule).find("WAIT_SEND_B"), std::string::npos);
    ++files;
  }
  EXPECT_EQ(files, 5);
}

TEST(LoweringTest, WhatIsLoweredPassesTheChecker) {
  for (const ScheduleGenerator& generator : AllSchedules()) {
    for (int ranks : {1, 2, 3, 5, 8}) {
      for (int whole_stages : {0, 2, 3}) {
        const PipelineSchedule schedule =
            GenerateSchedule(generator.name, {.ranks = ranks, .microbatches = 2 * ranks});
        const PipelineSchedule lowered = LowerSchedule(schedule, {.whole_stages = whole_stages});
        const ScheduleCertificate certificate = CheckSchedule(lowered);
        EXPECT_TRUE(certificate.ok) << generator.name << ": " << certificate.error;
        const PipelineSchedule computing =
            Without(lowered, {ActionKind::kSendForward, ActionKind::kRecvForward, ActionKind::kSendBackward,
                              ActionKind::kRecvBackward, ActionKind::kUnshard, ActionKind::kReshard,
                              ActionKind::kReduceGrad});
        EXPECT_EQ(computing, schedule) << generator.name;
        EXPECT_EQ(ScheduleFromCsv(ScheduleToCsv(lowered), "x").ToString(), lowered.ToString())
            << generator.name;
      }
    }
  }
}

TEST(LoweringTest, TransfersTakeNoTime) {
  for (const char* name : {"1f1b", "zbv", "dualpipev", "interleaved_zb"}) {
    const PipelineSchedule schedule = GenerateSchedule(name, {.ranks = 4, .microbatches = 8});
    const ScheduleCertificate lowered = CheckSchedule(LowerSchedule(schedule));
    ASSERT_TRUE(lowered.ok) << lowered.error;
    EXPECT_EQ(lowered.timeline.ranks, CheckSchedule(schedule).timeline.ranks) << name;
    EXPECT_EQ(lowered.holdings, CheckSchedule(schedule).holdings) << name;
  }
}

TEST(LoweringTest, AsOptionsSay) {
  const PipelineSchedule schedule = GenerateSchedule("1f1b", {.ranks = 2, .microbatches = 2});
  EXPECT_EQ(LowerSchedule(schedule).ToString(),
            "rank 0: 0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
            "rank 1: 1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n");
  EXPECT_EQ(LowerSchedule(schedule, {.whole_stages = 0, .reduce_gradients = false}).ToString(),
            "rank 0: 0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "rank 1: 1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

// W reads x and dY: parameters go when the last I has read them.
TEST(LoweringTest, WeightGradientsMayFollowTheLastReshard) {
  for (const char* name : {"zb_h1", "zb_h2", "interleaved_zb", "zbv"}) {
    const PipelineSchedule lowered =
        LowerSchedule(GenerateSchedule(name, {.ranks = 2, .microbatches = 8}), {.whole_for_weights = false});
    EXPECT_EQ(CheckSchedule(lowered).error, "") << name;
    int num_behind = 0;
    for (const std::vector<ScheduleItem>& items : lowered.ranks) {
      std::map<int, size_t> last_reshard, last_reader;
      for (size_t i = 0; i < items.size(); ++i) {
        for (const PipelineAction& action : items[i].actions) {
          const bool is_weight = action.kind == ActionKind::kWeightGradient;
          if (action.kind == ActionKind::kReshard) last_reshard[action.stage] = i;
          if (IsCompute(action.kind) && !is_weight) last_reader[action.stage] = i;
          num_behind += is_weight && last_reshard.contains(action.stage);
        }
      }
      for (const auto& [stage, at] : last_reader) {
        EXPECT_GT(last_reshard[stage], at) << name;
        for (size_t i = at + 1; i < last_reshard[stage]; ++i) {
          for (const PipelineAction& action : items[i].actions) {
            EXPECT_FALSE(action.kind == ActionKind::kWeightGradient && action.stage == stage) << name;
          }
        }
      }
    }
    EXPECT_GT(num_behind, 0) << name;
  }
}

TEST(LoweringTest, StagesOfOneRankHandOnByThemselves) {
  const PipelineSchedule lowered =
      LowerSchedule(GenerateSchedule("zbv", {.ranks = 1, .microbatches = 3}), {.whole_stages = 0});
  EXPECT_FALSE(lowered.lowered());
  // On the last rank of a V its two stages are neighbours: no transfer between stages 1 and 2.
  const std::string text = LowerSchedule(GenerateSchedule("zbv", {.ranks = 2, .microbatches = 3})).ToString();
  EXPECT_EQ(text.find("1SEND_F"), std::string::npos);
  EXPECT_EQ(text.find("2RECV_F"), std::string::npos);
  EXPECT_NE(text.find("2SEND_F"), std::string::npos);
}

// What lists have already of gathers and reductions stays, and nothing is added to it.
TEST(LoweringTest, WhatListsHaveIsNotAddedAgain) {
  const auto lowered = [](const std::string& csv) {
    return LowerSchedule(ScheduleFromCsv(csv, "x")).ToString();
  };
  EXPECT_EQ(lowered("0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD\n"),
            "rank 0: 0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0RESHARD\n"
            "rank 1: 1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1RESHARD\n");
  EXPECT_EQ(lowered("0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD\n1UNSHARD,1F0,1B0,1RESHARD\n"),
            "rank 0: 0UNSHARD,0F0,0SEND_F0,0RESHARD,0RECV_B0,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD\n"
            "rank 1: 1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n");
  for (const ScheduleGenerator& generator : AllSchedules()) {
    const PipelineSchedule once =
        LowerSchedule(GenerateSchedule(generator.name, {.ranks = 1, .microbatches = 2}));
    EXPECT_EQ(LowerSchedule(once), once) << generator.name;
    EXPECT_TRUE(once.Contains(ActionKind::kUnshard) && once.Contains(ActionKind::kReduceGrad));
  }
}

int MostWhole(const std::vector<ScheduleItem>& items) {
  int whole = 0;
  int most = 0;
  for (const ScheduleItem& item : items) {
    if (item.actions[0].kind == ActionKind::kUnshard) most = std::max(most, ++whole);
    if (item.actions[0].kind == ActionKind::kReshard) --whole;
  }
  return most;
}

TEST(LoweringTest, AtMostSoManyStagesAreWhole) {
  for (int whole_stages : {1, 2, 3}) {
    const PipelineSchedule lowered =
        LowerSchedule(GenerateSchedule("interleaved", {.ranks = 2, .chunks = 4, .microbatches = 4}),
                      {.whole_stages = whole_stages});
    for (const std::vector<ScheduleItem>& items : lowered.ranks) EXPECT_EQ(MostWhole(items), whole_stages);
  }
}

// A pair whose two stages do not fit behind one that is whole waits for its turn.
TEST(LoweringTest, APairIsGatheredWhole) {
  const PipelineSchedule schedule =
      ScheduleFromCsv("0F0,1F0,2F0,2B0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,2F1,2B1,1B1,0B1\n", "x");
  const PipelineSchedule lowered = LowerSchedule(schedule, {.whole_stages = 2, .reduce_gradients = false});
  EXPECT_EQ(lowered.ToString(),
            "rank 0: 0UNSHARD,1UNSHARD,0F0,0RESHARD,2UNSHARD,1F0,1RESHARD,2F0,2B0,2RESHARD,0UNSHARD,1UNSHARD,"
            "(0F1;1B0)OVERLAP_F_B,0B0,0RESHARD,2UNSHARD,1F1,2F1,2B1,2RESHARD,0UNSHARD,1B1,1RESHARD,0B1,"
            "0RESHARD\n");
  EXPECT_EQ(MostWhole(lowered.ranks[0]), 2);
  EXPECT_EQ(CheckSchedule(lowered).error, "");
}

// Transfers of one microbatch there and back: one per edge between ranks and direction.
TEST(LoweringTest, TransfersPerMicrobatch) {
  const auto transfers = [](const std::string& name, int chunks) {
    const PipelineSchedule lowered =
        LowerSchedule(GenerateSchedule(name, {.ranks = 4, .chunks = chunks, .microbatches = 8}));
    int sends = 0;
    for (const std::vector<ScheduleItem>& items : lowered.ranks) {
      for (const ScheduleItem& item : items) {
        const ActionKind kind = item.actions[0].kind;
        sends += kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
      }
    }
    return sends / 8.0;
  };
  for (const char* name : {"gpipe", "1f1b", "zb_h1", "zb_h2", "pipedream", "pipedream_2bw"}) {
    EXPECT_EQ(transfers(name, 1), 6) << name;
  }
  for (const char* name : {"interleaved", "looped_bfs", "interleaved_zb"})
    EXPECT_EQ(transfers(name, 2), 14) << name;
  EXPECT_EQ(transfers("interleaved", 4), 30);
  // In a V, the last rank hands on to itself.
  for (const char* name : {"zbv", "dualpipev", "v_half", "v_min"}) EXPECT_EQ(transfers(name, 2), 12) << name;
}

TEST(LoweringTest, OneReductionPerUpdate) {
  const PipelineSchedule lowered =
      LowerSchedule(GenerateSchedule("pipedream_2bw", {.ranks = 2, .microbatches = 4}));
  EXPECT_EQ(lowered.ToString(),
            "rank 0: "
            "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0REDUCE_GRAD,0OPT,0F3,"
            "0SEND_F3,0RECV_B2,0B2,0RECV_B3,0B3,0REDUCE_GRAD,0OPT,0RESHARD\n"
            "rank 1: "
            "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1RECV_F2,1B1,1SEND_B1,1REDUCE_GRAD,1OPT,1F2,"
            "1RECV_F3,1B2,1SEND_B2,1F3,1B3,1SEND_B3,1REDUCE_GRAD,1OPT,1RESHARD\n");
}

TEST(LoweringTest, WhatCannotBeLowered) {
  const PipelineSchedule schedule = GenerateSchedule("dualpipev", {.ranks = 2, .microbatches = 4});
  const auto message = [](const PipelineSchedule& given, const LoweringOptions& options) {
    return InvalidArgumentMessage([&] { LowerSchedule(given, options); });
  };
  EXPECT_EQ(message(LowerSchedule(schedule), {}), "schedule dualpipev has sends and receives already");
  EXPECT_EQ(message(schedule, {.whole_stages = -1}), "whole_stages = -1: expected 0 or more");
  EXPECT_EQ(message(schedule, {.whole_stages = 1}),
            "whole_stages = 1, but (0F3;3B1)OVERLAP_F_B computes with 2 stages");
  PipelineSchedule broken = schedule;
  broken.ranks[1].pop_back();
  EXPECT_EQ(message(broken, {}), "schedule dualpipev: rank 1: 1W3 is missing");
}

}  // namespace
}  // namespace weft
