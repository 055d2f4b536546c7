#include "runtime/comm/nccl/call_log.h"

#include <gtest/gtest.h>

#include "runtime/device/allocator.h"
#include "tests/message_of.h"

namespace weft {
namespace {

CollectiveDescriptor AllReduce(int64_t count) {
  return {.kind = CollectiveKind::kAllReduce, .dtype = DType::kF32, .counts = {count}};
}

Message To(int peer, int64_t count) {
  return {peer, Tensor::Empty(MakeMetaAllocator(), DType::kF32, {count})};
}

TEST(CallLogTest, IsTheSameAfterItHasBeenText) {
  CallLog log;
  EXPECT_EQ(CallLog::Decode(log.Encode()), log);
  for (int64_t i = 0; i < 200; ++i) {
    log.AddCall({.kind = CollectiveKind::kAllToAll, .dtype = DType::kBF16, .root = 0, .counts = {i, 2 * i}},
                {3 * i, 4});
    log.AddCall({.kind = CollectiveKind::kReduce,
                 .dtype = DType::kI64,
                 .op = ReduceOp::kMax,
                 .root = 1,
                 .counts = {i}},
                {});
  }
  log.AddBatch(1, 0, {To(1, 4), To(0, 9), To(1, 0)}, {To(3, 5), To(0, 9)});
  log.AddBatch(2, 0, {To(3, 4)}, {});
  log.Done(CollectiveKind::kReduce, 399);
  log.Done(CollectiveKind::kSendRecv, 1);
  EXPECT_EQ(CallLog::Decode(log.Encode()), log);
  EXPECT_EQ(log.calls().num, 400u);
  EXPECT_EQ(log.calls().At(1), nullptr);
  EXPECT_EQ(log.calls().At(400)->descriptor.counts[0], 199);
  EXPECT_EQ(log.calls().At(401), nullptr);
  EXPECT_EQ(log.sent_to(1).num, 2u);
  EXPECT_EQ(log.sent_to(0).num, 0u);  // to itself
  EXPECT_EQ(log.received_from(3).At(1)->type, "f32[5]");
}

TEST(CallLogTest, CountsThatAreAlikeInPartAreTheSameAfterTheyHaveBeenText) {
  CallLog log;
  for (const std::vector<int64_t>& counts : std::vector<std::vector<int64_t>>{
           {},
           {5},
           {5, 5},
           {5, 5, 5},
           {0, 0, 0, 0},
           {5, 7, 7, 5, 5, 5, 0},
           {5, 5, 7, 7, 5, 5},
           {1, 2, 3, 4, 5},
       }) {
    log.AddCall({.kind = CollectiveKind::kAllToAll, .counts = {counts.begin(), counts.end()}}, counts);
  }
  EXPECT_EQ(CallLog::Decode(log.Encode()), log);
}

// All members leave theirs in the store at once: as numbers of their own, these counts would be 1.8 MB for each.
TEST(CallLogTest, TheLogOfAThousandMembersIsShort) {
  CollectiveDescriptor gather = {.kind = CollectiveKind::kAllGather, .dtype = DType::kBF16};
  gather.counts.assign(1024, 855'468);
  gather.counts.back() = 855'467;
  CallLog log;
  for (int i = 0; i < 256; ++i) log.AddCall(gather, {});
  log.Done(CollectiveKind::kAllGather, 128);
  const CallLog told = log.Told();
  EXPECT_EQ(told.calls().there.size(), 256u);
  EXPECT_LT(told.Encode().size(), size_t{64} << 10);
  EXPECT_EQ(CallLog::Decode(told.Encode()), told);
}

// Counts of `num_members`, no two alike in a row, which follow from `call` and `seed`.
std::vector<int64_t> Uneven(int num_members, int call, int seed = 0) {
  std::vector<int64_t> counts(num_members);
  for (int i = 0; i < num_members; ++i)
    counts[i] = 1'000'000'000 + (i * 7919 + call * 104'729 + seed) % 999'983;
  return counts;
}

CollectiveDescriptor Of(CollectiveKind kind, const std::vector<int64_t>& counts) {
  return {.kind = kind, .dtype = DType::kF32, .counts = {counts.begin(), counts.end()}};
}

// A store's value is 1 MiB at most: as numbers of their own, these counts would be 3.4 MB.
TEST(CallLogTest, TheLogOfUnevenCallsIsShort) {
  constexpr int kMembers = 900;
  CallLog log;
  for (int i = 0; i < 256; ++i) {
    const bool to_all = i % 2 == 0;
    log.AddCall(Of(to_all ? CollectiveKind::kAllToAll : CollectiveKind::kAllGather, Uneven(kMembers, i)),
                to_all ? Uneven(kMembers, i, /*seed=*/1) : std::vector<int64_t>());
  }
  log.Done(CollectiveKind::kAllGather, 128);
  const CallLog told = log.Told();
  EXPECT_EQ(told.calls().there.size(), 256u);
  EXPECT_LT(told.Encode().size(), size_t{96} << 10);
  EXPECT_EQ(CallLog::Decode(told.Encode()), told);
  // The oldest that is under way is told whole.
  EXPECT_EQ(*told.calls().At(129), *log.calls().At(129));
}

// The `num_calls` all-to-alls of all members, as they tell them. In call `wrong` member 5 sends member 9 one element less than
// that one expects.
CallLogs AllToAlls(int num_members, int num_calls, int wrong) {
  CallLogs logs(num_members);
  for (int member = 0; member < num_members; ++member) {
    CallLog log;
    for (int call = 1; call <= num_calls; ++call) {
      std::vector<int64_t> sent(num_members), expected(num_members);
      for (int peer = 0; peer < num_members; ++peer) {
        sent[peer] = 1'000'000'000 + member * 1000 + peer * 7 + call;
        expected[peer] = 1'000'000'000 + peer * 1000 + member * 7 + call;
      }
      if (call == wrong && member == 9) ++expected[5];
      log.AddCall(Of(CollectiveKind::kAllToAll, sent), expected);
    }
    logs[member] = log.Told();
  }
  return logs;
}

// In the first, which is told whole, both ends are named.
TEST(CallLogTest, AllToAllsThatDifferAreFoundByTheirSumsToo) {
  constexpr int kMembers = 300;
  std::vector<int> ranks(kMembers);
  for (int member = 0; member < kMembers; ++member) ranks[member] = member;
  EXPECT_EQ(FindDisagreement("ep", ranks, AllToAlls(kMembers, /*num_calls=*/8, /*wrong=*/0)), std::nullopt);
  const std::string first =
      FindDisagreement("ep", ranks, AllToAlls(kMembers, /*num_calls=*/8, /*wrong=*/1)).value_or("");
  EXPECT_NE(first.find(": rank 5 sends 1000005064 elements to rank 9, which expects 1000005065"),
            std::string::npos)
      << first.substr(0, 200);
  CallLogs logs = AllToAlls(kMembers, /*num_calls=*/8, /*wrong=*/8);
  // 9e4 pairs of 1e9 + 8, and 1007 times the sum of 0 to 299, 44850, for each of 300.
  EXPECT_EQ(FindDisagreement("ep", ranks, logs),
            "group 'ep', collective #8: the members send 90013549905000 elements in all, and expect "
            "90013549905001");
  logs[3].reset();  // the sums say nothing where one is not known
  EXPECT_EQ(FindDisagreement("ep", ranks, logs), std::nullopt);
}

// Members at different calls tell different ones whole.
TEST(CallLogTest, ACallThatOneTellsWholeAgreesWithTheSameInShort) {
  constexpr int kCalls = 20;
  CallLog ahead, behind, different;
  for (int call = 1; call <= kCalls; ++call) {
    const std::vector<int64_t> counts = Uneven(/*num_members=*/600, call);
    ahead.AddCall(Of(CollectiveKind::kAllGather, counts), {});
    behind.AddCall(Of(CollectiveKind::kAllGather, counts), {});
    std::vector<int64_t> other = counts;
    if (call == 12) std::swap(other[0], other[1]);  // of one sum
    different.AddCall(Of(CollectiveKind::kAllGather, other), {});
  }
  ahead.Done(CollectiveKind::kAllGather, 12);
  EXPECT_EQ(FindDisagreement("dp", {0, 1}, {ahead.Told(), behind.Told()}), std::nullopt);
  const std::string text = FindDisagreement("dp", {0, 1}, {ahead.Told(), different.Told()}).value_or("");
  EXPECT_EQ(text.find("group 'dp', collective #12: rank 0 called all_gather(f32, "), 0u)
      << text.substr(0, 200);
  EXPECT_LT(text.size(), 300u);
}

TEST(CallLogTest, WhatIsNoLogIsRefused) {
  // The last three have one call, whose counts are 5 and 5 and then too few, too many, or less than none.
  for (const char* text : {"12", "x y ", "1 0 1 1 1 0 0 0 0 0 2 5 5 ", "1 0 1 1 1 0 0 0 0 0 2 5 5 1 0 0 0 0 ",
                           "1 0 1 1 1 0 0 0 0 0 2 5 5 -1 0 0 0 0 "}) {
    EXPECT_NE(MessageOf([&] { CallLog::Decode(text); }).find("not a call log"), std::string::npos) << text;
  }
  EXPECT_EQ(CallLog::Decode("1 0 1 1 1 0 0 0 0 0 2 5 5 0 0 0 0 0 ").calls().At(1)->descriptor.counts,
            (CollectiveDescriptor::Counts{5, 5}));
}

TEST(CallLogTest, TheFirstDisagreementIsFoundWhateverCameAfter) {
  CallLogs logs(3);
  for (int member = 0; member < 3; ++member) {
    logs[member].emplace();
    for (int64_t i = 1; i <= 20; ++i) {
      if (member == 2 && i > 15) break;  // behind
      logs[member]->AddCall(AllReduce(member == 1 && i == 7 ? 99 : i), {});
    }
  }
  EXPECT_EQ(FindDisagreement("dp", {4, 5, 6}, logs),
            "group 'dp', collective #7: rank 4 called all_reduce(f32, sum, count 7), rank 5 called "
            "all_reduce(f32, sum, count 99)");
  logs[1] = logs[0];
  EXPECT_EQ(FindDisagreement("dp", {4, 5, 6}, logs), std::nullopt);
  EXPECT_EQ(FindMissing(0, CollectiveKind::kAllReduce, 16, logs), std::vector<int>{2});
  logs[1].reset();
  EXPECT_EQ(FindDisagreement("dp", {4, 5, 6}, logs), std::nullopt);
  EXPECT_EQ(FindMissing(0, CollectiveKind::kAllReduce, 15, logs), std::vector<int>{1});
}

// One that has called more than a log keeps, beside one that has called little.
TEST(CallLogTest, LogsThatDoNotMeetSayNothing) {
  CallLogs logs(2);
  logs[0].emplace();
  logs[1].emplace();
  for (int64_t i = 0; i < 500; ++i) logs[0]->AddCall(AllReduce(1), {});
  logs[0]->Done(CollectiveKind::kAllReduce, 400);
  logs[1]->AddCall(AllReduce(2), {});
  EXPECT_EQ(FindDisagreement("dp", {0, 1}, logs), std::nullopt);
  EXPECT_EQ(FindMissing(0, CollectiveKind::kAllReduce, 500, logs), std::vector<int>{1});
}

TEST(CallLogTest, MessagesMeetByTheirNumberBetweenTwoEnds) {
  CallLogs logs(3);
  for (auto& log : logs) log.emplace();
  logs[0]->AddBatch(1, 0, {To(1, 4), To(2, 4)}, {});
  logs[0]->AddBatch(2, 0, {To(1, 6)}, {To(1, 1)});
  logs[1]->AddBatch(1, 1, {}, {To(0, 4)});
  EXPECT_EQ(FindDisagreement("pp", {0, 1, 2}, logs), std::nullopt);
  EXPECT_EQ(FindMissing(0, CollectiveKind::kSendRecv, 1, logs), std::vector<int>{2});
  EXPECT_EQ(FindMissing(0, CollectiveKind::kSendRecv, 2, logs), std::vector<int>{1});
  EXPECT_EQ(FindMissing(1, CollectiveKind::kSendRecv, 1, logs), std::vector<int>{});
  logs[1]->AddBatch(2, 1, {}, {To(0, 5)});
  EXPECT_EQ(FindDisagreement("pp", {0, 1, 2}, logs),
            "group 'pp', send_recv #2: rank 0 sent 24 bytes to rank 1, which expected 20 bytes (f32[5])");
}

// The host runs ahead of the stream.
TEST(CallLogTest, WhatIsUnderWayIsKeptWhateverCameAfter) {
  CallLogs logs(2);
  logs[0].emplace();
  logs[1].emplace();
  for (uint64_t i = 1; i <= 130; ++i) logs[0]->AddBatch(i, 0, {To(1, 4)}, {});
  EXPECT_EQ(FindMissing(0, CollectiveKind::kSendRecv, 1, logs), std::vector<int>{1});
  logs[0] = logs[0]->Told();
  EXPECT_EQ(FindMissing(0, CollectiveKind::kSendRecv, 1, logs), std::vector<int>{1});
}

TEST(CallLogTest, TellsWhatIsUnderWayAndTheLastBefore) {
  CallLog log;
  for (int64_t i = 1; i <= 1000; ++i) log.AddCall(AllReduce(i), {});
  for (uint64_t done = 1; done <= 500; ++done) log.Done(CollectiveKind::kAllReduce, done);
  EXPECT_EQ(log.calls().first, 373u);  // 128 that have ended
  EXPECT_EQ(log.calls().end(), 1001u);
  const CallLog told = log.Told();
  EXPECT_EQ(told.calls().num, 1000u);
  EXPECT_EQ(told.calls().first, 373u);
  EXPECT_EQ(told.calls().end(), 629u);  // 128 that have not
  EXPECT_EQ(told.calls().At(628)->descriptor.counts[0], 628);
  EXPECT_EQ(CallLog::Decode(told.Encode()), told);
  EXPECT_EQ(log.Told(/*kept=*/2).calls().first, 499u);
  log.Done(CollectiveKind::kAllReduce, 1000);
  EXPECT_EQ(log.Told(/*kept=*/2).calls().first, 999u);
  EXPECT_EQ(log.Told(/*kept=*/2).calls().end(), 1001u);
}

// A batch of many messages, and what has ended of several rows.
TEST(CallLogTest, TheOldestBatchIsToldWhole) {
  CallLog log;
  log.AddBatch(1, 0, {To(1, 1), To(2, 1)}, {To(1, 1)});
  log.AddBatch(2, 0, std::vector<Message>(200, To(1, 2)), {});
  log.AddBatch(3, 0, std::vector<Message>(200, To(1, 3)), {To(2, 3)});
  log.Done(CollectiveKind::kSendRecv, 1);
  const CallLog told = log.Told();
  EXPECT_EQ(told.sent_to(1).num_done, 1u);
  EXPECT_EQ(told.sent_to(1).end(), 202u);
  EXPECT_EQ(told.sent_to(2).num_done, 1u);
  EXPECT_EQ(told.received_from(2).num_done, 0u);
  EXPECT_EQ(FindMissing(0, CollectiveKind::kSendRecv, 2, {told, CallLog(), CallLog()}), std::vector<int>{1});
  EXPECT_EQ(FindMissing(0, CollectiveKind::kSendRecv, 3, {log, CallLog(), CallLog()}),
            (std::vector<int>{1, 2}));
}

}  // namespace
}  // namespace weft
