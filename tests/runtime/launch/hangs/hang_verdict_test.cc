#include "runtime/launch/hangs/hang_verdict.h"

#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/base/error.h"
#include "tests/message_of.h"

namespace weft {
namespace {

PendingOperation Blocked(const std::string& axis, const std::vector<int>& ranks, uint64_t sequence,
                         const std::string& where = "") {
  PendingOperation operation;
  operation.group = axis + "#0";
  operation.axis = axis;
  operation.ranks = ranks;
  operation.sequence = sequence;
  operation.call = "all_reduce(f32, sum, count 4)";
  operation.where = where;
  operation.seconds = 3;
  return operation;
}

RankReport InOperation(int rank, const PendingOperation& operation) {
  RankStatus status;
  status.rank = rank;
  status.pending = {operation};
  status.num_collectives = {{operation.group, operation.sequence}};
  return {.rank = rank, .status = status};
}

TEST(HangVerdictTest, WhoHasNotEnteredIsNamedWithWhatItDidLast) {
  const PendingOperation reduce = Blocked("dp", {0, 1, 2}, 7, "head, grad");
  std::vector<RankReport> reports = {InOperation(0, reduce), InOperation(1, reduce), {.rank = 2}};
  reports[2].status.emplace();
  reports[2].status->rank = 2;
  reports[2].status->num_collectives = {{"dp#0", 6}};
  reports[2].status->last = "data loader";
  reports[2].status->last_seconds = 4.2;
  EXPECT_EQ(ExplainHang(reports, 0)->text,
            "rank 2 has not entered (last seen: data loader, 4.2 s ago) while ranks 0, 1 wait in "
            "all_reduce(f32, sum, count 4) #7 on axis dp (head, grad)");
  EXPECT_FALSE(ExplainHang(reports, 0)->deadlock);
  EXPECT_EQ(ExplainHang(reports, 1), ExplainHang(reports, 0));
  EXPECT_EQ(ExplainHang(reports, 2), std::nullopt);
}

TEST(HangVerdictTest, RanksInDifferentGroupsThatWaitForEachOtherAreADeadlock) {
  const PendingOperation dp = Blocked("dp", {0, 1, 2, 3}, 41);
  const PendingOperation tp = Blocked("tp", {2, 3}, 9, "blocks.2.attn.qkv, param");
  const std::vector<RankReport> reports = {InOperation(0, dp), InOperation(1, dp), InOperation(2, dp),
                                           InOperation(3, tp)};
  const HangVerdict verdict = ExplainHang(reports, 0).value();
  EXPECT_EQ(verdict.text,
            "rank 3 is at all_reduce(f32, sum, count 4) #9 on axis tp (blocks.2.attn.qkv, param) while ranks "
            "0-2 wait in all_reduce(f32, sum, count 4) #41 on axis dp");
  EXPECT_TRUE(verdict.deadlock);
  EXPECT_TRUE(ExplainHang(reports, 3)->deadlock);
}

TEST(HangVerdictTest, OfAMessageBothEndsSayWhatTheyDo) {
  PendingOperation message = Blocked("pipeline 1->0", {0, 1}, 2);
  message.call = "send_recv(512 bytes)";
  message.collective = false;
  message.blocking = false;
  message.awaited = true;
  message.issued_seconds = 4;
  std::vector<RankReport> reports = {InOperation(0, message), {.rank = 1}};
  reports[0].status->activity = "RECV_B of stage 0, microbatch 1";
  reports[1].status.emplace();
  reports[1].status->rank = 1;
  reports[1].status->activity = "W of stage 1, microbatch 0";
  const std::string waits =
      "rank 0, in RECV_B of stage 0, microbatch 1, waits for send_recv(512 bytes) #2 on axis pipeline 1->0, "
      "issued "
      "4.0 s ago; ";
  EXPECT_EQ(ExplainHang(reports, 0)->text, waits + "rank 1 is in W of stage 1, microbatch 0");
  reports[1].status->place = "backward of blocks.4";
  EXPECT_EQ(ExplainHang(reports, 0)->text,
            waits + "rank 1 is in W of stage 1, microbatch 0 (backward of blocks.4)");
  reports[1].gone = "exited with code 9";
  EXPECT_EQ(ExplainHang(reports, 0)->text, waits + "rank 1 exited with code 9");
}

// 0 waits for 1, which waits in another group for 2, which is only slow.
TEST(HangVerdictTest, AChainThatEndsInASlowRankIsNoDeadlock) {
  std::vector<RankReport> reports = {
      InOperation(0, Blocked("a", {0, 1}, 1)), InOperation(1, Blocked("b", {1, 2}, 1)), {.rank = 2}};
  reports[2].status.emplace();
  reports[2].status->rank = 2;
  EXPECT_FALSE(ExplainHang(reports, 0)->deadlock);
  EXPECT_FALSE(ExplainHang(reports, 1)->deadlock);
  EXPECT_EQ(ExplainHang(reports, 1)->text.find("rank 2 has not entered: it has used no communicator yet"),
            0u);
}

// What is not blocking, or goes between two, may still end.
TEST(HangVerdictTest, AsynchronousWorkAndMessagesMakeNoCircle) {
  PendingOperation a = Blocked("a", {0, 1}, 1);
  PendingOperation b = Blocked("b", {0, 1}, 1);
  b.blocking = false;
  EXPECT_FALSE(ExplainHang({InOperation(0, a), InOperation(1, b)}, 0)->deadlock);
  b.blocking = true;
  b.collective = false;
  b.call = "send_recv(16 bytes)";
  EXPECT_FALSE(ExplainHang({InOperation(0, a), InOperation(1, b)}, 0)->deadlock);
  EXPECT_EQ(ExplainHang({InOperation(0, a), InOperation(1, b)}, 1)->text,
            "rank 1 is at send_recv(16 bytes) #1 on axis b, waiting for its peers");
}

// Rank 1 has issued the call and is at what comes before it; rank 2 is in another call.
TEST(HangVerdictTest, WhatIsQueuedHasNotBeenEntered) {
  const PendingOperation dp = Blocked("dp", {0, 1, 2}, 7);
  PendingOperation queued = dp;
  queued.begun = false;
  queued.seconds = 4.2;
  std::vector<RankReport> reports = {InOperation(0, dp), InOperation(1, queued), InOperation(2, queued)};
  EXPECT_EQ(ExplainHang(reports, 0)->text,
            "ranks 1, 2 have it queued behind other work (issued 4.2 s ago) while rank 0 waits in "
            "all_reduce(f32, sum, count 4) #7 on axis dp");
  EXPECT_FALSE(ExplainHang(reports, 1).has_value());  // it waits in nothing
  reports[2].status->pending.push_back(Blocked("tp", {0, 2}, 3));
  reports[2].status->num_collectives["tp#0"] = 3;
  EXPECT_EQ(ExplainHang(reports, 0)->text,
            "rank 1 has it queued behind other work (issued 4.2 s ago); rank 2 is at all_reduce(f32, sum, "
            "count 4) #3 on axis tp while rank 0 waits in all_reduce(f32, sum, count 4) #7 on axis dp");
  // Rank 2 waits for rank 0, which has not issued tp; but rank 2 has issued dp, and may come to it.
  EXPECT_FALSE(ExplainHang(reports, 0)->deadlock);
}

TEST(HangVerdictTest, TheGoneTheSilentAndTheStuckAreToldApart) {
  const PendingOperation reduce = Blocked("dp", {0, 1, 2, 3}, 5);
  std::vector<RankReport> reports = {
      InOperation(0, reduce), {.rank = 1}, {.rank = 2}, InOperation(3, reduce)};
  reports[1].gone = "exited with code 9";
  reports[2].silent_seconds = 3.14;
  EXPECT_EQ(ExplainHang(reports, 0)->text,
            "rank 1 exited with code 9; rank 2 is not answering for 3.1 s: stopped, or its host cannot be "
            "reached while ranks 0, 3 wait in all_reduce(f32, sum, count 4) #5 on axis dp");
  // Died after it had entered.
  reports[1] = InOperation(1, reduce);
  reports[1].gone = "was killed by signal 9";
  reports[2] = InOperation(2, reduce);
  EXPECT_EQ(
      ExplainHang(reports, 0)->text,
      "rank 1 was killed by signal 9 while ranks 0-3 wait in all_reduce(f32, sum, count 4) #5 on axis dp");
  reports[1].gone.clear();
  EXPECT_EQ(ExplainHang(reports, 0)->text,
            "all members have entered, but ranks 0-3 wait in all_reduce(f32, sum, count 4) #5 on axis dp: is "
            "a link down?");
}

TEST(HangVerdictTest, RankLists) {
  EXPECT_EQ(RankList({4}), "rank 4");
  EXPECT_EQ(RankList({0, 1}), "ranks 0, 1");
  EXPECT_EQ(RankList({0, 1, 2, 5, 7, 8}), "ranks 0-2, 5, 7, 8");
}

TEST(RankStatusTest, TravelsAsJson) {
  RankStatus status;
  status.rank = 3;
  status.num_collectives = {{"tp[2,3]#0", 41}, {"dp[1,3]#1", 0}};
  status.last = "data \"loader\"";
  status.last_seconds = 4.25;
  status.pending = {Blocked("tp", {2, 3}, 41, "blocks.0, grad"), Blocked("dp", {1, 3}, 1)};
  status.pending[1].blocking = false;
  status.pending[1].collective = false;
  status.pending[1].begun = false;
  EXPECT_EQ(RankStatus::FromJson(status.ToJson()), status);
  EXPECT_NE(MessageOf([] { RankStatus::FromJson("{\"rank\": 1"); }).find("not a rank's status"),
            std::string::npos);
  EXPECT_NE(MessageOf([] { RankStatus::FromJson("{\"rank\": \"x\"}"); }).find("not a rank's status"),
            std::string::npos);
  std::string text = status.ToJson();
  text.replace(text.find("2-3"), 3, "2-x");
  EXPECT_EQ(InvalidArgumentMessage([&] { RankStatus::FromJson(text); }), "not a set of ranks: '2-x'");
}

// Such as paths in another encoding than UTF-8.
TEST(RankStatusTest, TravelsAsJsonWithNamesOfAnyBytes) {
  RankStatus status;
  status.activity =
      "lade gr\xf6\xdf"
      "e.bin";
  status.pending = {Blocked("t\xf6rk", {2, 3}, 41)};
  status.num_collectives = {{status.pending[0].group, 41}};
  const RankStatus read = RankStatus::FromJson(status.ToJson());
  EXPECT_EQ(read.activity, "lade gr\uFFFD\uFFFDe.bin");
  ASSERT_EQ(read.pending.size(), 1u);
  EXPECT_EQ(read.pending[0].axis, "t\uFFFDrk");
  EXPECT_EQ(read.num_collectives.count(read.pending[0].group), 1u);
  EXPECT_EQ(RankStatus::FromJson(read.ToJson()), read);
}

// Of six groups and 64 operations under way: a store's value has at most 1 MiB.
TEST(RankStatusTest, AmongThousandsOfRanksItIsShort) {
  FlightRecorder recorder;
  std::vector<int> ranks(4096);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (int i = 0; i < 6; ++i) {
    FlightRecorder::OpenedGroup* const group = recorder.OpenGroup("dp", ranks);
    FlightEntry entry;
    entry.kind = CollectiveKind::kReduceScatter;
    entry.async = true;
    entry.issued_ns = FlightClock();
    const uint64_t num_pending = i == 0 ? 64 : 0;
    for (entry.sequence = 1; entry.sequence <= num_pending; ++entry.sequence) recorder.Issue(group, entry);
  }
  const RankStatus status = StatusOf(5, recorder);
  EXPECT_EQ(status.pending.size(), 64u);
  EXPECT_EQ(status.num_collectives.size(), 6u);
  EXPECT_LT(status.ToJson().size(), size_t{256} << 10);
  EXPECT_EQ(RankStatus::FromJson(status.ToJson()), status);
}

TEST(RankStatusTest, TellsWhatIsPendingAndWhatWasLast) {
  FlightRecorder recorder;
  EXPECT_EQ(StatusOf(5, recorder), RankStatus{.rank = 5});
  FlightRecorder::OpenedGroup* const tp = recorder.OpenGroup("tp", {4, 5});
  FlightEntry entry;
  entry.kind = CollectiveKind::kBarrier;
  entry.issued_ns = FlightClock() - 5'000'000'000;
  entry.sequence = 1;
  recorder.End(recorder.Issue(tp, entry), entry.issued_ns + 1'000'000'000, /*ok=*/true);
  RankStatus status = StatusOf(5, recorder);
  EXPECT_EQ(status.last, "done with barrier() #1 on axis tp");
  EXPECT_NEAR(status.last_seconds, 4, 0.5);
  EXPECT_EQ(status.blocked_in(), nullptr);

  recorder.SetActivity("data loader");
  entry.sequence = 2;
  entry.async = true;
  recorder.Issue(tp, entry);
  entry.sequence = 3;
  entry.async = false;
  recorder.Issue(tp, entry);
  status = StatusOf(5, recorder);
  EXPECT_EQ(status.last, "data loader");
  ASSERT_EQ(status.pending.size(), 2u);
  EXPECT_EQ(status.blocked_in()->sequence, 3u);
  EXPECT_EQ(status.blocked_in()->group, "tp[4,5]#0");
  EXPECT_NEAR(status.blocked_in()->seconds, 5, 0.5);
  EXPECT_EQ(status.num_collectives.at("tp[4,5]#0"), 3u);
}

TEST(RankStatusTest, SecondsRunFromTheBegin) {
  FlightRecorder recorder;
  FlightRecorder::OpenedGroup* const tp = recorder.OpenGroup("tp", {4, 5});
  FlightEntry entry;
  entry.in_stream = true;
  entry.issued_ns = FlightClock() - 50'000'000'000;
  entry.sequence = 1;
  const uint64_t first = recorder.Issue(tp, entry);
  entry.sequence = 2;
  recorder.Issue(tp, entry);
  RankStatus status = StatusOf(5, recorder);
  EXPECT_EQ(status.waits_in(), nullptr);
  EXPECT_FALSE(status.pending.at(0).begun);
  EXPECT_NEAR(status.pending.at(0).seconds, 50, 5);
  recorder.Begin(first, FlightClock() - 20'000'000'000);
  status = StatusOf(5, recorder);
  EXPECT_EQ(status.blocked_in(), &status.pending.at(0));
  EXPECT_EQ(status.waits_in(), status.blocked_in());
  EXPECT_NEAR(status.pending.at(0).seconds, 20, 5);
  // Of what is asynchronous, the oldest that has begun.
  entry.async = true;
  entry.sequence = 3;
  recorder.Begin(recorder.Issue(tp, entry), FlightClock());
  recorder.End(first, FlightClock(), /*ok=*/true);
  status = StatusOf(5, recorder);
  EXPECT_EQ(status.blocked_in(), nullptr);
  ASSERT_NE(status.waits_in(), nullptr);
  EXPECT_EQ(status.waits_in()->sequence, 3u);
}

}  // namespace
}  // namespace weft
