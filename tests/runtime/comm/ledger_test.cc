#include "runtime/comm/ledger.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(LedgerTest, SumsItsEntriesAndClears) {
  Ledger ledger;
  ledger.Record({CollectiveKind::kAllReduce, "dp", 100, 0.5, {.purpose = 1, .path_id = 2}});
  ledger.Record({CollectiveKind::kBarrier, "tp", 0, 0.25, {}});
  EXPECT_EQ(ledger.num_bytes(), 100);
  EXPECT_EQ(ledger.seconds(), 0.75);
  ASSERT_EQ(ledger.entries().size(), 2u);
  EXPECT_EQ(ledger.entries()[0].group, "dp");
  EXPECT_EQ(ledger.entries()[0].tag, (CommTag{.purpose = 1, .path_id = 2}));
  ledger.Clear();
  EXPECT_TRUE(ledger.entries().empty());
  EXPECT_EQ(ledger.num_bytes(), 0);
}

TEST(LedgerTest, WorkersMayRecordAtOnce) {
  Ledger ledger;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) ledger.Record({CollectiveKind::kAllReduce, "dp", j, 0, {}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger.num_bytes(), 4 * 999 * 500);
}

}  // namespace
}  // namespace weft
