#include "runtime/launch/clock_offset.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

// Tracers of three ranks that began at different times, on one clock: so the truth can be read.
TEST(ClockOffsetTest, LiesWithinItsErrorOfTheTruth) {
  std::unique_ptr<Tracer> tracers[3];
  for (std::unique_ptr<Tracer>& tracer : tracers) {
    tracer = std::make_unique<Tracer>();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  RunRanks(3, [&](World& world) {
    const Tracer& mine = *tracers[world.rank()];
    const ClockOffset offset = MeasureClockOffset(*world.NewGroup("clock", {0, 1, 2}), mine);
    if (world.rank() == 0) {
      EXPECT_EQ(offset.ns, 0);
      return;
    }
    // Between two readings of this one the other is read: the truth lies between the two differences.
    const int64_t before = mine.Now();
    const int64_t first = tracers[0]->Now();
    const int64_t after = mine.Now();
    EXPECT_GT(first - before, 4'000'000);
    EXPECT_LE(offset.ns - offset.error_ns, first - before);
    EXPECT_GE(offset.ns + offset.error_ns, first - after);
  });
}

TEST(ClockOffsetTest, IsWrittenWithTheTrace) {
  const std::pair<int64_t, double> cases[] = {{-1'500'250, -1500.25},
                                              {-250, -0.25},
                                              {12'345'678'901, 12345678.901},
                                              {-12'345'678'901, -12345678.901}};
  for (const auto& [ns, us] : cases) {
    Tracer tracer;
    tracer.Add(/*rank=*/2, "op", "add", 1000, 2000);
    tracer.SetClockOffset(ns);
    int times = 0;
    for (const nlohmann::json& event : nlohmann::json::parse(tracer.ToChromeJson())) {
      if (event["name"] != "clock_offset") continue;
      ++times;
      EXPECT_EQ(event["pid"], 2);
      EXPECT_DOUBLE_EQ(event["args"]["us"], us);
    }
    EXPECT_EQ(times, 1) << tracer.ToChromeJson();
  }
}

}  // namespace
}  // namespace weft
