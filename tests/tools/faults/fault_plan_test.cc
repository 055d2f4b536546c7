#include "tools/faults/fault_plan.h"

#include <algorithm>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

int Count(const std::vector<PlannedFault>& plan, Moment moment) {
  return static_cast<int>(std::count_if(plan.begin(), plan.end(),
                                        [&](const PlannedFault& fault) { return fault.moment == moment; }));
}

TEST(FaultPlanTest, MomentsAreAsPromisedForEverySeed) {
  for (const int count : {1, 2, 3, 7, 20, 200}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<PlannedFault> plan = PlanFaults({.count = count, .seed = seed, .num_ranks = 3});
      ASSERT_EQ(plan.size(), static_cast<size_t>(count));
      EXPECT_FALSE(IsInRestart(plan[0].moment));
      EXPECT_EQ(Count(plan, Moment::kSave), (3 * count + 9) / 10) << count;
      EXPECT_EQ(Count(plan, Moment::kRestart),
                std::min(count - Count(plan, Moment::kSave), (3 * count + 9) / 10));
      int64_t step = 0;
      for (const PlannedFault& fault : plan) {
        EXPECT_EQ(fault.step > step, fault.moment != Moment::kRestart);
        EXPECT_LE(fault.step - step, 8);
        step = fault.step;
        EXPECT_GE(fault.rank, 0);
        EXPECT_LT(fault.rank, 3);
        EXPECT_GE(fault.delay, 0);
        EXPECT_LT(fault.delay, 1);
      }
    }
  }
}

// Of those in restarts that kill a launcher, every other one comes while launchers meet.
TEST(FaultPlanTest, LaunchersAreKilledWhileTheyMeet) {
  const std::vector<Fault> launchers = {Fault::kAgent, Fault::kGuard, Fault::kBoth, Fault::kHost,
                                        Fault::kHosts};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<PlannedFault> plan = PlanFaults({.count = 20, .seed = seed, .kinds = launchers});
    EXPECT_EQ(Count(plan, Moment::kMeeting), 3) << seed;
    EXPECT_EQ(Count(plan, Moment::kRestart), 3) << seed;
    int64_t step = 0;
    for (const PlannedFault& fault : plan) {
      EXPECT_EQ(fault.step > step, !IsInRestart(fault.moment));
      step = fault.step;
    }
    const std::vector<PlannedFault> mixed =
        PlanFaults({.count = 40, .seed = seed, .kinds = {Fault::kRank, Fault::kFreeze, Fault::kBoth}});
    for (const PlannedFault& fault : mixed) {
      if (fault.moment == Moment::kMeeting) {
        EXPECT_EQ(fault.fault, Fault::kBoth);
      }
    }
    EXPECT_EQ(Count(PlanFaults({.count = 20, .seed = seed, .kinds = {Fault::kRank, Fault::kStop}}),
                    Moment::kMeeting),
              0);
  }
}

TEST(FaultPlanTest, TheSeedSaysAll) {
  EXPECT_EQ(PlanFaults({.seed = 5}), PlanFaults({.seed = 5}));
  EXPECT_NE(PlanFaults({.seed = 5}), PlanFaults({.seed = 6}));
}

TEST(FaultPlanTest, KindsAreEven) {
  const std::vector<Fault> kinds = {Fault::kRank, Fault::kStop, Fault::kAgent};
  std::map<Fault, int> counts;
  for (const PlannedFault& fault : PlanFaults({.count = 20, .kinds = kinds})) ++counts[fault.fault];
  EXPECT_EQ(counts, (std::map<Fault, int>{{Fault::kRank, 7}, {Fault::kStop, 7}, {Fault::kAgent, 6}}));
}

TEST(FaultPlanTest, NamesAndMistakes) {
  for (const Fault fault : {Fault::kRank, Fault::kStop, Fault::kAgent, Fault::kGuard, Fault::kBoth,
                            Fault::kDisk, Fault::kFlip, Fault::kShort, Fault::kClock, Fault::kStore,
                            Fault::kHost, Fault::kHosts, Fault::kFreeze, Fault::kPause, Fault::kUnplug}) {
    EXPECT_EQ(ParseFault(FaultName(fault)), fault);
  }
  EXPECT_EQ(InvalidArgumentMessage([] { ParseFault("ranks"); }),
            "unknown kind of fault 'ranks': expected one of rank, stop, agent, guard, both, disk, flip, "
            "short, clock, store, host, hosts, freeze, pause, unplug");
  EXPECT_EQ(InvalidArgumentMessage([] { PlanFaults({.count = 0}); }),
            "a plan of 0 faults of 1 kinds on 2 ranks, 4 steps apart: expected at least one of each");
}

}  // namespace
}  // namespace weft
