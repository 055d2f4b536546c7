#include "runtime/comm/ledger.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/comm/flight_clock.h"

namespace weft {
namespace {

constexpr CommTag kTag = {.purpose = 1, .path_id = 2};

TEST(LedgerTest, CallsOfOneKindGroupAndTagAreOneEntry) {
  Ledger ledger;
  Ledger::Row* const reduce = ledger.RowOf(CollectiveKind::kAllReduce, "dp", kTag);
  Ledger::Row* const barrier = ledger.RowOf(CollectiveKind::kBarrier, "tp", {});
  EXPECT_TRUE(ledger.entries().empty());
  barrier->AddCall(0);
  for (int i = 0; i < 1000; ++i) {
    ledger.RowOf(CollectiveKind::kAllReduce, "dp", kTag)->AddCall(100);
    reduce->AddTime(500'000);
  }
  barrier->AddTime(250'000'000);
  const LedgerEntry first = {.kind = CollectiveKind::kBarrier, .group = "tp", .calls = 1, .seconds = 0.25};
  const LedgerEntry second = {.kind = CollectiveKind::kAllReduce,
                              .group = "dp",
                              .tag = kTag,
                              .calls = 1000,
                              .num_bytes = 100'000,
                              .seconds = 0.5};
  EXPECT_EQ(ledger.entries(), (std::vector<LedgerEntry>{first, second}));
  EXPECT_EQ(ledger.num_bytes(), 100'000);
  EXPECT_EQ(ledger.seconds(), 0.75);
}

TEST(LedgerTest, WhatDiffersInOneOfTheseIsAnotherEntry) {
  Ledger ledger;
  ledger.RowOf(CollectiveKind::kAllReduce, "dp", kTag)->AddCall(1);
  ledger.RowOf(CollectiveKind::kAllGather, "dp", kTag)->AddCall(2);
  ledger.RowOf(CollectiveKind::kAllReduce, "tp", kTag)->AddCall(3);
  ledger.RowOf(CollectiveKind::kAllReduce, "dp", {.purpose = 2, .path_id = 2})->AddCall(4);
  ledger.RowOf(CollectiveKind::kAllReduce, "dp", {.purpose = 1, .path_id = 3})->AddCall(5);
  const std::vector<LedgerEntry> entries = ledger.entries();
  ASSERT_EQ(entries.size(), 5u);
  for (size_t i = 0; i < entries.size(); ++i) EXPECT_EQ(entries[i].num_bytes, static_cast<int64_t>(i) + 1);
}

// Rows stay; entries begin anew, and so does their order.
TEST(LedgerTest, ClearForgetsTheCallsAndTheirOrder) {
  Ledger ledger;
  Ledger::Row* const a = ledger.RowOf(CollectiveKind::kAllReduce, "a", {});
  Ledger::Row* const b = ledger.RowOf(CollectiveKind::kAllReduce, "b", {});
  a->AddCall(1);
  a->AddTime(1);
  b->AddCall(2);
  ledger.Clear();
  EXPECT_TRUE(ledger.entries().empty());
  EXPECT_EQ(ledger.num_bytes(), 0);
  EXPECT_EQ(ledger.seconds(), 0);
  b->AddCall(4);
  a->AddCall(8);
  ASSERT_EQ(ledger.entries().size(), 2u);
  EXPECT_EQ(ledger.entries()[0].group, "b");
  EXPECT_EQ(ledger.num_bytes(), 12);
}

// No second is lost of what was issued before Clear and ends after it.
TEST(LedgerTest, WhatEndsAfterClearCountsItsSecondsThere) {
  Ledger ledger;
  Ledger::Row* const row = ledger.RowOf(CollectiveKind::kAllReduce, "dp", {});
  row->AddCall(100);
  ledger.Clear();
  row->AddTime(500'000'000);
  const LedgerEntry expected = {.kind = CollectiveKind::kAllReduce, .group = "dp", .seconds = 0.5};
  EXPECT_EQ(ledger.entries(), std::vector<LedgerEntry>{expected});
}

// Two overlapping operations, and one apart from them: 2 s and 1 s, in which something ran.
TEST(LedgerTest, BusyTimeIsTheUnionOfWhatRan) {
  constexpr int64_t kSecond = 1'000'000'000;
  Ledger ledger;
  const int64_t now = FlightClock();
  ledger.Begin(now - 10 * kSecond);
  ledger.Begin(now - 9 * kSecond - kSecond / 2);
  ledger.End(now - 9 * kSecond);
  ledger.End(now - 8 * kSecond);
  ledger.Begin(now - 7 * kSecond);
  ledger.End(now - 6 * kSecond);
  EXPECT_DOUBLE_EQ(ledger.busy_seconds(), 3);
}

// What runs while the ledger is read and cleared counts on both sides of it, and no time twice or never.
TEST(LedgerTest, BusyTimeOfWhatRunsAcrossClearCountsOnBothSides) {
  constexpr int64_t kSecond = 1'000'000'000;
  const auto seconds_since = [](int64_t then) { return static_cast<double>(FlightClock() - then) * 1e-9; };
  Ledger ledger;
  const int64_t begun = FlightClock() - 2 * kSecond;
  ledger.Begin(begun);
  ledger.Begin(begun + kSecond);
  const double before = ledger.busy_seconds();
  EXPECT_GE(before, 2);
  EXPECT_LE(before, seconds_since(begun));
  const int64_t earliest = FlightClock();
  ledger.Clear();
  const int64_t latest = FlightClock();
  ledger.End(latest + 1 * kSecond);
  ledger.End(latest + 5 * kSecond);
  const double after = ledger.busy_seconds();
  EXPECT_GE(after, 5);
  EXPECT_LE(after, 5 + static_cast<double>(latest - earliest) * 1e-9);
}

TEST(LedgerTest, WorkersMayWriteAtOnce) {
  Ledger ledger;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) {
        Ledger::Row* const row = ledger.RowOf(CollectiveKind::kAllReduce, "dp", {.path_id = j % 7});
        row->AddCall(j);
        row->AddTime(1000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger.entries().size(), 7u);
  EXPECT_EQ(ledger.num_bytes(), 4 * 999 * 500);
  EXPECT_DOUBLE_EQ(ledger.seconds(), 4 * 1000 * 1e-6);
}

}  // namespace
}  // namespace weft
