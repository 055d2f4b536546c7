#include "parallel/pipeline/schedule.h"

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(ScheduleTest, EveryKindReadsWhatItWrites) {
  const std::vector<std::string> texts = {
      "2F0",       "0I12",         "3W1",           "10B7",          "0UNSHARD",
      "1RESHARD",  "2REDUCE_GRAD", "0OPT",          "1SEND_F0",      "2RECV_F0",
      "2SEND_B10", "1RECV_B10",    "1WAIT_SEND_F3", "4WAIT_SEND_B0", "12WAIT_REDUCE_GRAD",
  };
  std::vector<ActionKind> kinds;
  for (const std::string& text : texts) {
    const auto action = PipelineAction::Parse(text);
    ASSERT_TRUE(action.has_value()) << text;
    EXPECT_EQ(action->ToString(), text);
    kinds.push_back(action->kind);
  }
  for (size_t i = 0; i < kinds.size(); ++i) EXPECT_EQ(static_cast<size_t>(kinds[i]), i) << texts[i];
  EXPECT_EQ(PipelineAction::Parse("12SEND_B34"), (PipelineAction{ActionKind::kSendBackward, 12, 34}));
  EXPECT_EQ(PipelineAction::Parse("7RESHARD"), (PipelineAction{ActionKind::kReshard, 7, -1}));
}

TEST(ScheduleTest, WhatIsNoActionIsNotRead) {
  for (const char* text : {"", "F0", "2F", "2X0", "2f0", "2F0x", "2F0 ", "2UNSHARD0", "-1F0", "2F-1",
                           "99999999999F0", "2SEND0", "(0F0;1B0)OVERLAP_F_B"}) {
    EXPECT_FALSE(PipelineAction::Parse(text).has_value()) << text;
  }
  for (const char* text : {"", " ", "(0F0;1B0)", "(0F0)OVERLAP_F_B", "(0F0;1B0OVERLAP_F_B", "0F0;1B0",
                           "()OVERLAP_F_B", "(0F0;1SEND_F0)OVERLAP_F_B", "(0F0;)OVERLAP_F_B"}) {
    EXPECT_FALSE(ScheduleItem::Parse(text).has_value()) << text;
  }
}

TEST(ScheduleTest, PairsReadWhatTheyWrite) {
  const auto pair = ScheduleItem::Parse(" ( 0F3; 3B1 )OVERLAP_F_B ");
  ASSERT_TRUE(pair.has_value());
  EXPECT_EQ(*pair, ScheduleItem(PipelineAction{ActionKind::kForward, 0, 3},
                                PipelineAction{ActionKind::kBackward, 3, 1}));
  EXPECT_TRUE(pair->overlapped());
  EXPECT_EQ(pair->ToString(), "(0F3;3B1)OVERLAP_F_B");
  const auto single = ScheduleItem::Parse(" 2F0 ");
  ASSERT_TRUE(single.has_value());
  EXPECT_FALSE(single->overlapped());
  EXPECT_EQ(single->ToString(), "2F0");
}

TEST(ScheduleTest, KindsSayWhatTheyAre) {
  EXPECT_TRUE(IsCompute(ActionKind::kBackward));
  EXPECT_FALSE(IsCompute(ActionKind::kUnshard));
  EXPECT_TRUE(IsTransfer(ActionKind::kSendForward));
  EXPECT_TRUE(IsTransfer(ActionKind::kRecvBackward));
  EXPECT_FALSE(IsTransfer(ActionKind::kWaitSendForward));
  EXPECT_TRUE(HasMicrobatch(ActionKind::kWaitSendBackward));
  EXPECT_FALSE(HasMicrobatch(ActionKind::kWaitReduceGrad));
  EXPECT_FALSE(HasMicrobatch(ActionKind::kOpt));
}

TEST(ScheduleTest, Placements) {
  EXPECT_EQ(LoopPlacement(3, 2), (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(VPlacement(3), (std::vector<int>{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(LoopPlacement(1, 1), (std::vector<int>{0}));
  EXPECT_EQ(VPlacement(1), (std::vector<int>{0, 0}));
  PipelineSchedule schedule{.stage_rank = VPlacement(3), .ranks = std::vector<std::vector<ScheduleItem>>(3)};
  EXPECT_EQ(schedule.StagesOf(1), (std::vector<int>{1, 4}));
  EXPECT_EQ(schedule.num_chunks(), 2);
  schedule.stage_rank = {0, 1, 1, 1, 2};
  EXPECT_EQ(schedule.num_chunks(), 3);
}

TEST(ScheduleTest, PrintsItsLists) {
  PipelineSchedule schedule{.num_microbatches = 1, .stage_rank = {0, 1}};
  const PipelineAction f0{ActionKind::kForward, 0, 0};
  const PipelineAction f1{ActionKind::kForward, 1, 0};
  const PipelineAction b1{ActionKind::kBackward, 1, 0};
  schedule.ranks = {{f0}, {f1, b1}};
  EXPECT_EQ(schedule.ToString(), "rank 0: 0F0\nrank 1: 1F0,1B0\n");
  EXPECT_FALSE(schedule.lowered());
  schedule.ranks[1].insert(schedule.ranks[1].begin(), PipelineAction{ActionKind::kRecvForward, 1, 0});
  EXPECT_TRUE(schedule.lowered());
}

}  // namespace
}  // namespace weft
