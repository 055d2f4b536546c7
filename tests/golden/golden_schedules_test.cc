// Learning rates against PyTorch's schedulers (schedules.json, computed by make_optimizer_golden.py): step t has the
// learning rate of epoch t - 1.

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "dtensor/optim/plateau.h"
#include "dtensor/optim/schedule.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace weft {
namespace {

using Json = nlohmann::json;

// PyTorch multiplies some rates up from epoch to epoch.
constexpr double kTolerance = 1e-14;

Json ReadGolden() {
  std::ifstream file("tests/golden/schedules.json");
  return file ? Json::parse(file) : Json();
}

void Compare(const char* name, const Schedule& schedule) {
  const Json golden = ReadGolden();
  ASSERT_TRUE(golden.is_object()) << "tests/golden/schedules.json cannot be read";
  const std::vector<double> expected = golden["rates"][name];
  ASSERT_FALSE(expected.empty()) << name;
  for (size_t epoch = 0; epoch < expected.size(); ++epoch) {
    const auto step = static_cast<int64_t>(epoch) + 1;
    EXPECT_NEAR(schedule(step), expected[epoch], kTolerance) << name << ", step " << step;
  }
}

TEST(GoldenSchedulesTest, Linear) {
  Compare("linear_decay", WarmupLinear{.peak = 0.8, .floor = 0.2, .warmup_steps = 0, .total_steps = 12});
  Compare("linear_warmup", WarmupLinear{.peak = 0.8, .floor = 0, .warmup_steps = 5, .total_steps = 100});
  Compare("linear_warmup", WarmupStableDecay{.peak = 0.8, .warmup_steps = 5});
}

TEST(GoldenSchedulesTest, Cosine) {
  Compare("cosine", WarmupCosine{.peak = 0.8, .floor = 0.1, .warmup_steps = 0, .total_steps = 12});
}

TEST(GoldenSchedulesTest, OneCycle) {
  Compare("one_cycle", OneCycle{.peak = 0.8, .total_steps = 20});
  Compare("one_cycle_linear", OneCycle{.peak = 0.8,
                                       .total_steps = 13,
                                       .pct_start = 0.4,
                                       .div_factor = 10,
                                       .final_div_factor = 100,
                                       .anneal = OneCycle::Anneal::kLinear});
  Compare("one_cycle_three", OneCycle{.peak = 0.8, .total_steps = 23, .phases = 3});
}

TEST(GoldenSchedulesTest, WarmRestarts) {
  Compare("warm_restarts", WarmRestarts{.peak = 0.8, .floor = 0.1, .first_period = 4});
  Compare("warm_restarts_grow", WarmRestarts{.peak = 0.8, .floor = 0.1, .first_period = 3, .growth = 2});
}

// One that is stopped after every metric, and goes on from its text, beside one that is not.
void ComparePlateau(const char* name, const PlateauOptions& options) {
  const Json golden = ReadGolden();
  ASSERT_TRUE(golden.is_object()) << "tests/golden/schedules.json cannot be read";
  const std::vector<double> expected = golden["rates"][name];
  ASSERT_EQ(expected.size(), golden["metrics"].size());
  Plateau plateau(options);
  std::string saved = plateau.state().ToText();
  for (size_t epoch = 0; epoch < expected.size(); ++epoch) {
    EXPECT_NEAR(plateau.lr(), expected[epoch], kTolerance) << name << ", epoch " << epoch;
    const Json& metric = golden["metrics"][epoch];
    const double value = metric.is_null() ? std::numeric_limits<double>::quiet_NaN() : metric.get<double>();
    plateau.Observe(value);
    Plateau resumed(options);
    resumed.set_state(PlateauState::Parse(saved));
    resumed.Observe(value);
    EXPECT_EQ(resumed.state(), plateau.state()) << name << ", epoch " << epoch;
    saved = resumed.state().ToText();
  }
  EXPECT_LT(expected.back(), expected.front());
}

TEST(GoldenSchedulesTest, Plateau) {
  ComparePlateau("plateau", {.lr = 0.8, .factor = 0.5, .patience = 2});
  ComparePlateau("plateau_cooldown", {.lr = 0.8,
                                      .factor = 0.3,
                                      .patience = 1,
                                      .better = PlateauOptions::Better::kHigher,
                                      .threshold = 0.01,
                                      .threshold_of = PlateauOptions::ThresholdOf::kAbsolute,
                                      .cooldown = 3,
                                      .min_lr = 0.05});
}

}  // namespace
}  // namespace weft
