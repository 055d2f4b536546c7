#include "dtensor/optim/schedule.h"

#include <cmath>
#include <numbers>

#include "gtest/gtest.h"

namespace weft {
namespace {

TEST(ScheduleTest, WarmsUpLinearly) {
  const WarmupCosine schedule = {.peak = 0.8, .floor = 0.1, .warmup_steps = 4, .total_steps = 12};
  EXPECT_DOUBLE_EQ(schedule.At(1), 0.2);
  EXPECT_DOUBLE_EQ(schedule.At(2), 0.4);
  EXPECT_DOUBLE_EQ(schedule.At(3), 0.6);
  EXPECT_DOUBLE_EQ(schedule.At(4), 0.8);
}

TEST(ScheduleTest, ThenFallsAsACosine) {
  const WarmupCosine schedule = {.peak = 0.8, .floor = 0.1, .warmup_steps = 4, .total_steps = 12};
  EXPECT_DOUBLE_EQ(schedule.At(8), 0.45);  // half-way: the middle
  // A quarter of the way: cos(pi / 4).
  EXPECT_DOUBLE_EQ(schedule.At(6), 0.1 + 0.7 * (1 + std::numbers::sqrt2 / 2) / 2);
  EXPECT_DOUBLE_EQ(schedule.At(10), 0.1 + 0.7 * (1 - std::numbers::sqrt2 / 2) / 2);
  EXPECT_DOUBLE_EQ(schedule.At(12), 0.1);
  EXPECT_DOUBLE_EQ(schedule.At(1000), 0.1);
  for (int64_t step = 4; step < 12; ++step) EXPECT_GT(schedule.At(step), schedule.At(step + 1)) << step;
}

TEST(ScheduleTest, WithoutWarmUpTheFirstStepHasThePeak) {
  const WarmupCosine schedule = {.peak = 1, .floor = 0, .warmup_steps = 0, .total_steps = 3};
  EXPECT_DOUBLE_EQ(schedule.At(1), 1);
  EXPECT_DOUBLE_EQ(schedule.At(2), 0.5);
  EXPECT_DOUBLE_EQ(schedule.At(3), 0);
}

TEST(ScheduleTest, BeforeTheFirstStep) {
  EXPECT_EQ((WarmupCosine{.peak = 0.8, .floor = 0.1, .warmup_steps = 4, .total_steps = 12}.At(0)), 0);
  EXPECT_EQ((WarmupCosine{.peak = 0.8, .floor = 0.1, .warmup_steps = 0, .total_steps = 12}.At(0)), 0.8);
  EXPECT_EQ((WarmupCosine{.peak = 0.8, .floor = 0.1, .warmup_steps = 0, .total_steps = 0}.At(0)), 0.8);
}

TEST(ScheduleTest, ARunOfWarmUpAlone) {
  const WarmupCosine schedule = {.peak = 1, .floor = 0.25, .warmup_steps = 2, .total_steps = 2};
  EXPECT_DOUBLE_EQ(schedule.At(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule.At(2), 1);
  EXPECT_DOUBLE_EQ(schedule.At(3), 0.25);
}

}  // namespace
}  // namespace weft
