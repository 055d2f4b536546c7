#include "runtime/comm/local/wait_point.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace weft {
namespace {

// Whether a waiter of `point` is asleep when it looks at its condition for the second time.
bool SleepsAtItsSecondLook(WaitPoint& point) {
  int num_looks = 0;
  bool sleeps = false;
  const auto ready = [&] {
    if (++num_looks == 2) sleeps = point.has_sleepers();
    return num_looks == 2;
  };
  EXPECT_TRUE(point.Wait(ready, std::chrono::minutes(1)));
  EXPECT_FALSE(point.has_sleepers());
  return sleeps;
}

TEST(WaitPointTest, AWaiterSleepsAtOnceWhereItBlocksAtOnce) {
  for (const bool spin : {false, true}) {
    WaitPoint point(spin);
    point.SetBlocksAtOnce();
    EXPECT_TRUE(SleepsAtItsSecondLook(point)) << spin;
  }
  WaitPoint spinning(/*spin=*/true);
  EXPECT_FALSE(SleepsAtItsSecondLook(spinning));
}

TEST(WaitPointTest, WhatIsReadyIsNotSleptFor) {
  WaitPoint point(/*spin=*/true);
  point.SetBlocksAtOnce();
  bool has_slept = false;
  EXPECT_TRUE(point.Wait([&] { return has_slept = point.has_sleepers(), true; }, std::chrono::minutes(1)));
  EXPECT_FALSE(has_slept);
}

TEST(WaitPointTest, ASleeperIsWokenAndOneInVainGivesUp) {
  WaitPoint point(/*spin=*/true);
  point.SetBlocksAtOnce();
  std::atomic<bool> is_ready = false;
  EXPECT_FALSE(point.Wait([&] { return is_ready.load(); }, std::chrono::milliseconds(1)));
  std::thread other([&] {
    while (!point.has_sleepers()) std::this_thread::yield();
    is_ready = true;
    point.Notify();
  });
  EXPECT_TRUE(point.Wait([&] { return is_ready.load(); }, std::chrono::minutes(1)));
  other.join();
}

}  // namespace
}  // namespace weft
