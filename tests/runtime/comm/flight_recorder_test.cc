#include "runtime/comm/flight_recorder.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace weft {
namespace {

FlightEntry AllReduce(uint64_t sequence) {
  FlightEntry entry;
  entry.sequence = sequence;
  entry.kind = CollectiveKind::kAllReduce;
  entry.dtype = DType::kBF16;
  entry.op = ReduceOp::kMax;
  entry.count = 12;
  entry.tag = {.purpose = 3, .path_id = 7};
  entry.issued_ns = 1000 + static_cast<int64_t>(sequence);
  return entry;
}

TEST(FlightRecorderTest, AnEntryIsReadAsItWasWritten) {
  FlightRecorder recorder(8);
  FlightRecorder::OpenedGroup* const group = recorder.OpenGroup("tp", {2, 3});
  FlightEntry expected = AllReduce(41);
  expected.root = -5;
  expected.async = true;
  expected.id = recorder.Issue(group, expected);
  EXPECT_EQ(recorder.Snapshot().entries, std::vector<FlightEntry>{expected});
  EXPECT_EQ(FlightStateName(expected.state), "queued");

  recorder.Begin(expected.id, 2000);
  expected.begun_ns = 2000;
  expected.state = FlightEntry::State::kRunning;
  EXPECT_EQ(recorder.Snapshot().entries[0], expected);

  recorder.End(expected.id, 3000, /*ok=*/true);
  expected.ended_ns = 3000;
  expected.state = FlightEntry::State::kDone;
  EXPECT_EQ(recorder.Snapshot().entries[0], expected);

  recorder.End(expected.id, 3500, /*ok=*/false);
  EXPECT_EQ(recorder.Snapshot().entries[0].state, FlightEntry::State::kFailed);
  EXPECT_EQ(recorder.Snapshot().entries[0].ended_ns, 3500);
}

TEST(FlightRecorderTest, WhatIsNeitherAsyncNorInAStreamBeginsAtOnce) {
  FlightRecorder recorder(8);
  FlightRecorder::OpenedGroup* const group = recorder.OpenGroup("dp", {0});
  recorder.Issue(group, AllReduce(1));
  FlightEntry queued = AllReduce(2);
  queued.in_stream = true;
  queued.id = recorder.Issue(group, queued);
  const FlightEntry entry = recorder.Snapshot().entries.at(0);
  EXPECT_EQ(entry.begun_ns, entry.issued_ns);
  EXPECT_EQ(entry.state, FlightEntry::State::kRunning);
  EXPECT_EQ(recorder.Snapshot().entries.at(1), queued);
}

TEST(FlightRecorderTest, TheRingKeepsTheLastOnesInOrder) {
  FlightRecorder recorder(4);
  FlightRecorder::OpenedGroup* const group = recorder.OpenGroup("dp", {0, 1});
  for (uint64_t sequence = 1; sequence <= 10; ++sequence) recorder.Issue(group, AllReduce(sequence));
  recorder.End(1, 5, /*ok=*/true);  // overwritten long ago: no other entry is touched
  const FlightSnapshot snapshot = recorder.Snapshot();
  ASSERT_EQ(snapshot.entries.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(snapshot.entries[i].sequence, 7 + i);
    EXPECT_EQ(snapshot.entries[i].ended_ns, 0);
  }
  EXPECT_EQ(snapshot.groups.at(0).num_collectives, 10u);
}

TEST(FlightRecorderTest, GroupsOfTheSameRanksAreNumberedAndTheClosedKeptForAWhile) {
  FlightRecorder recorder;
  FlightRecorder::OpenedGroup* const first = recorder.OpenGroup("tp", {0, 2});
  recorder.OpenGroup("tp", {0, 2});
  recorder.OpenGroup("dp", {0, 1});
  recorder.CloseGroup(first);
  const std::vector<FlightGroup> groups = recorder.Snapshot().groups;
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].Key(), "tp[0,2]#0");
  EXPECT_TRUE(groups[0].closed);
  EXPECT_EQ(groups[1].Key(), "tp[0,2]#1");
  EXPECT_EQ(groups[2].Key(), "dp[0,1]#0");
  for (int i = 0; i < 1000; ++i) recorder.CloseGroup(recorder.OpenGroup("x", {0}));
  EXPECT_LT(recorder.Snapshot().groups.size(), 100u);
  EXPECT_EQ(recorder.Snapshot().groups[0].Key(), "tp[0,2]#1");
}

TEST(FlightRecorderTest, TheKeyOfALargeGroupIsShort) {
  const auto key = [](int num_ranks, int stride) {
    FlightGroup group = {.name = "dp", .ranks = {}, .ordinal = 3};
    for (int i = 0; i < num_ranks; ++i) group.ranks.push_back(stride * i);
    return group.Key();
  };
  EXPECT_EQ(key(16, 1), "dp[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15]#3");
  EXPECT_EQ(key(17, 1), "dp[0-16]#3");
  EXPECT_EQ(key(4096, 2), "dp[0-8190:2]#3");
}

TEST(FlightRecorderTest, CallsAndTagsReadLikeTheErrorsDo) {
  FlightEntry entry = AllReduce(1);
  EXPECT_EQ(entry.Call(), "all_reduce(bf16, max, count 12)");
  entry.kind = CollectiveKind::kBroadcast;
  entry.root = 2;
  EXPECT_EQ(entry.Call(), "broadcast(bf16, root 2, count 12)");
  entry.kind = CollectiveKind::kAllGather;
  EXPECT_EQ(entry.Call(), "all_gather(bf16, count 12)");
  entry.kind = CollectiveKind::kSendRecv;
  EXPECT_EQ(entry.Call(), "send_recv(12 bytes)");
  entry.kind = CollectiveKind::kBarrier;
  EXPECT_EQ(entry.Call(), "barrier()");

  FlightRecorder recorder;
  EXPECT_EQ(recorder.TagText(entry.tag), "");
  recorder.NamePath(7, "blocks.2.attn");
  EXPECT_EQ(recorder.TagText(entry.tag), "blocks.2.attn");
  recorder.NamePurpose(3, "loss");
  EXPECT_EQ(recorder.TagText(entry.tag), "blocks.2.attn, loss");
}

// A reader never sees a mixture of two entries: here every field is a function of the sequence.
TEST(FlightRecorderTest, ReadersSeeWholeEntries) {
  FlightRecorder recorder(4);
  FlightRecorder::OpenedGroup* const group = recorder.OpenGroup("dp", {0, 1});
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (uint64_t sequence = 1; !stop.load(); ++sequence) {
      FlightEntry entry = AllReduce(sequence);
      entry.count = static_cast<int64_t>(3 * sequence);
      entry.tag.path_id = static_cast<int32_t>(sequence % 1000);
      const uint64_t id = recorder.Issue(group, entry);
      recorder.End(id, entry.issued_ns + 1, /*ok=*/true);
    }
  });
  int64_t num_read = 0;
  while (num_read < 20000) {
    for (const FlightEntry& entry : recorder.Snapshot().entries) {
      ASSERT_EQ(entry.id, entry.sequence);
      ASSERT_EQ(entry.count, static_cast<int64_t>(3 * entry.sequence));
      ASSERT_EQ(entry.tag.path_id, static_cast<int32_t>(entry.sequence % 1000));
      ASSERT_TRUE(entry.ended_ns == 0 || entry.ended_ns == entry.issued_ns + 1);
      ++num_read;
    }
  }
  stop.store(true);
  writer.join();
}

}  // namespace
}  // namespace weft
