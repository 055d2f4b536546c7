#include "dtensor/optim/schedule.h"

#include <cmath>
#include <numbers>

#include "dtensor/optim/plateau.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

TEST(ScheduleTest, WarmsUpLinearly) {
  const WarmupCosine schedule = {.peak = 0.8, .floor = 0.1, .warmup_steps = 4, .total_steps = 12};
  EXPECT_DOUBLE_EQ(schedule.At(1), 0.2);
  EXPECT_DOUBLE_EQ(schedule.At(2), 0.4);
  EXPECT_DOUBLE_EQ(schedule.At(3), 0.6);
  EXPECT_DOUBLE_EQ(schedule.At(4), 0.8);
}

// log(2), log(4) and log(8) of log(8); then as behind a linear one. DeepSpeed makes a step of two, as the logarithm of 1 is 0.
TEST(ScheduleTest, WarmsUpAsALogarithm) {
  const auto logs = [](const Schedule& schedule) {
    EXPECT_EQ(schedule(0), 0);
    EXPECT_DOUBLE_EQ(schedule(1), 0.2);
    EXPECT_DOUBLE_EQ(schedule(3), 0.4);
    EXPECT_DOUBLE_EQ(schedule(5), 0.6 * std::log(6.0) / std::log(8.0));
    EXPECT_DOUBLE_EQ(schedule(7), 0.6);
    EXPECT_DOUBLE_EQ(schedule(8), 0.6);
  };
  constexpr WarmupShape kLog = WarmupShape::kLog;
  const WarmupCosine cosine = {
      .peak = 0.6, .floor = 0.1, .warmup_steps = 8, .total_steps = 20, .warmup = kLog};
  const WarmupLinear line = {.peak = 0.6, .warmup_steps = 8, .total_steps = 20, .warmup = kLog};
  logs(cosine);
  logs(line);
  logs(WarmupStableDecay{.peak = 0.6, .warmup_steps = 8, .warmup = kLog});
  logs(WarmRestarts{.peak = 0.6, .warmup_steps = 8, .warmup = kLog});
  EXPECT_DOUBLE_EQ(cosine(14), 0.35);
  EXPECT_DOUBLE_EQ(line(14), 0.3);
  const WarmupLinear one = {.peak = 0.6, .floor = 0.6, .warmup_steps = 1, .warmup = kLog};
  EXPECT_DOUBLE_EQ(one(0), 0);
  EXPECT_DOUBLE_EQ(one(1), 0.6);
  EXPECT_DOUBLE_EQ((WarmupLinear{.peak = 0.6, .warmup_steps = 0, .warmup = kLog}.At(1)), 0.6);
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

TEST(ScheduleTest, LinearFallsInEqualSteps) {
  const WarmupLinear schedule = {.peak = 0.8, .floor = 0.2, .warmup_steps = 4, .total_steps = 10};
  for (int64_t step = 0; step <= 4; ++step)
    EXPECT_DOUBLE_EQ(schedule.At(step), 0.2 * static_cast<double>(step));
  for (int64_t step = 4; step <= 10; ++step) {
    EXPECT_DOUBLE_EQ(schedule.At(step), 0.8 - 0.1 * static_cast<double>(step - 4));
  }
  EXPECT_DOUBLE_EQ(schedule.At(11), 0.2);
  EXPECT_DOUBLE_EQ((WarmupLinear{.peak = 0.8, .warmup_steps = 0}.At(0)), 0.8);
}

TEST(ScheduleTest, StaysAtThePeakAndDecaysAtTheEnd) {
  WarmupStableDecay schedule = {
      .peak = 0.8, .floor = 0.2, .warmup_steps = 2, .decay_steps = 4, .total_steps = 10};
  EXPECT_DOUBLE_EQ(schedule.At(1), 0.4);
  for (int64_t step = 2; step <= 6; ++step) EXPECT_DOUBLE_EQ(schedule.At(step), 0.8) << step;
  EXPECT_DOUBLE_EQ(schedule.At(7), 0.2 + 0.6 * 0.5);  // 1 - sqrt(1 / 4)
  EXPECT_DOUBLE_EQ(schedule.At(10), 0.2);
  EXPECT_DOUBLE_EQ(schedule.At(99), 0.2);
  schedule.decay = DecayShape::kLinear;
  EXPECT_DOUBLE_EQ(schedule.At(7), 0.65);
  EXPECT_DOUBLE_EQ(schedule.At(9), 0.35);
  schedule.decay = DecayShape::kCosine;
  EXPECT_DOUBLE_EQ(schedule.At(8), 0.5);
  EXPECT_DOUBLE_EQ(schedule.At(7), 0.2 + 0.6 * (1 + std::numbers::sqrt2 / 2) / 2);
  // What comes before the decay does not know when the run ends.
  WarmupStableDecay longer = schedule;
  longer.total_steps = 1000;
  for (int64_t step = 0; step <= 6; ++step) EXPECT_EQ(longer.At(step), schedule.At(step)) << step;
}

TEST(ScheduleTest, RestartsAfterEachPeriod) {
  const WarmRestarts schedule = {.peak = 1, .floor = 0, .warmup_steps = 2, .first_period = 2, .growth = 3};
  EXPECT_DOUBLE_EQ(schedule.At(1), 0.5);
  for (const int64_t step : {2, 4, 10, 28}) EXPECT_DOUBLE_EQ(schedule.At(step), 1) << step;  // 2, 6, 18 steps
  for (const int64_t step : {3, 7, 19}) EXPECT_DOUBLE_EQ(schedule.At(step), 0.5) << step;    // half-way
  EXPECT_EQ(InvalidArgumentMessage([] { WarmRestarts{.first_period = 0}.At(1); }),
            "WarmRestarts: expected a first period and a growth of 1 or more, got 0 and 1");
}

TEST(ScheduleTest, OneCycleAtItsEnds) {
  const OneCycle schedule = {
      .peak = 1, .total_steps = 20, .pct_start = 0.25, .div_factor = 10, .final_div_factor = 100};
  EXPECT_DOUBLE_EQ(schedule.At(1), 0.1);
  EXPECT_EQ(schedule.At(0), schedule.At(1));
  EXPECT_DOUBLE_EQ(schedule.At(5), 1);
  EXPECT_DOUBLE_EQ(schedule.At(20), 0.001);
  EXPECT_EQ(schedule.At(21), schedule.At(20));
  EXPECT_EQ((OneCycle{.peak = 1, .total_steps = 1}.At(1)), (OneCycle{.peak = 1, .total_steps = 1}.At(2)));
  EXPECT_EQ(InvalidArgumentMessage([] { OneCycle{.phases = 4}.At(1); }),
            "OneCycle: expected 2 or 3 phases, got 4");
  EXPECT_EQ(InvalidArgumentMessage([] { OneCycle{.pct_start = 1.5}.At(1); }),
            "OneCycle: expected a pct_start between 0 and 1, got 1.5");
  EXPECT_EQ(InvalidArgumentMessage([] { OneCycle{.div_factor = 0}.At(1); }),
            "OneCycle: expected a div_factor and a final_div_factor above 0, got 0 and 10000");
  EXPECT_EQ(InvalidArgumentMessage([] { OneCycle{.final_div_factor = -10}.At(1); }),
            "OneCycle: expected a div_factor and a final_div_factor above 0, got 25 and -10");
}

TEST(PlateauTest, FallsWhenTheMetricStaysAndSaysWhatIsWrong) {
  Plateau plateau({.lr = 1, .factor = 0.5, .patience = 1, .threshold = 0.1});
  const auto after = [&](double metric) {
    plateau.Observe(metric);
    return plateau.lr();
  };
  EXPECT_EQ(after(10), 1);
  EXPECT_EQ(after(9.5), 1);    // better, but not by a tenth: one
  EXPECT_EQ(after(9.5), 0.5);  // two
  EXPECT_EQ(after(8), 0.5);
  EXPECT_EQ(plateau.state(), (PlateauState{.lr = 0.5, .best = 8}));
  EXPECT_EQ(InvalidArgumentMessage([] { Plateau({.factor = 1}); }),
            "Plateau: expected a factor between 0 and 1, got 1");
  EXPECT_EQ(InvalidArgumentMessage([] { Plateau({.patience = -1}); }),
            "Plateau: expected no negative lr, patience or cooldown, got 0.001, -1 and 0");
  EXPECT_EQ(InvalidArgumentMessage([] { PlateauState::Parse("0.5 8 0"); }),
            "PlateauState: expected two numbers and two counts, as ToText writes them, got '0.5 8 0'");
}

}  // namespace
}  // namespace weft
