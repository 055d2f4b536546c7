// Damaged schedules: what the checker says of them is what a game of tokens does in all of its states, in either direction.

#include "tests/parallel/pipeline/damage.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/generator.h"
#include "parallel/pipeline/lowering.h"
#include "tests/parallel/pipeline/token_game.h"

namespace weft {
namespace {

constexpr int kDamaged = 10'000;        // per schedule
constexpr int kMostStates = 1'000'000;  // of one damaged schedule: far more than any here has

// The schedule at several sizes, computing alone and lowered.
std::vector<PipelineSchedule> Bases(const std::string& name) {
  std::vector<PipelineSchedule> bases;
  for (const int ranks : {2, 3}) {
    const PipelineSchedule schedule =
        GenerateSchedule(name, {.ranks = ranks, .microbatches = name == "dualpipev" ? 2 * ranks : ranks});
    bases.push_back(schedule);
    bases.push_back(LowerSchedule(schedule, {.whole_stages = 0, .reduce_gradients = false}));
    bases.push_back(LowerSchedule(schedule, {.whole_stages = 2}));
  }
  // Updates within the step, more than one of a stage.
  if (absl::StartsWith(name, "pipedream"))
    bases.push_back(GenerateSchedule(name, {.ranks = 2, .microbatches = 6}));
  return bases;
}

class DamageTest : public testing::TestWithParam<std::string> {};

TEST_P(DamageTest, NoVerdictDiffers) {
  std::mt19937_64 random(20261123);
  const std::vector<PipelineSchedule> bases = Bases(GetParam());
  int legal = 0;
  int deadlocks = 0;
  for (int i = 0; i < kDamaged; ++i) {
    Damage damage(bases[i % bases.size()], random);
    for (uint64_t count = 1 + random() % 2; count > 0; --count) damage.Once();
    const ScheduleCertificate certificate = CheckSchedule(damage.schedule());
    const GameVerdict verdict = PlayTokenGame(damage.schedule(), kMostStates);
    ASSERT_FALSE(verdict.has_more) << damage.schedule().ToString();
    ASSERT_EQ(verdict, (GameVerdict{.ends = certificate.ok, .stuck = !certificate.ok}))
        << certificate.error << "\n"
        << damage.schedule().ToString();
    ASSERT_TRUE(certificate.ok || absl::StrContains(certificate.error, "rank ")) << certificate.error;
    legal += certificate.ok;
    deadlocks += absl::StartsWith(certificate.error, "deadlock: ");
  }
  // All three are met often enough to mean something.
  EXPECT_GT(legal, kDamaged / 100);
  EXPECT_GT(deadlocks, kDamaged / 500);
  EXPECT_LT(legal, kDamaged / 2);
}

INSTANTIATE_TEST_SUITE_P(All, DamageTest, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const ScheduleGenerator& generator : AllSchedules())
                             names.push_back(generator.name);
                           return names;
                         }()),
                         [](const auto& info) { return absl::StrCat("of_", info.param); });

TEST(TokenGameTest, WhatIsNotDamagedEnds) {
  for (const ScheduleGenerator& generator : AllSchedules()) {
    for (const PipelineSchedule& schedule : Bases(generator.name)) {
      EXPECT_EQ(PlayTokenGame(schedule, kMostStates), (GameVerdict{.ends = true})) << schedule.ToString();
    }
  }
}

// Three ranks, each as far as it likes: 3^3 states. As many as there are actions are always allowed.
TEST(TokenGameTest, SaysWhereThereAreMoreStates) {
  PipelineSchedule schedule = {.num_microbatches = 2, .stage_rank = {0, 1, 2}};
  schedule.ranks.resize(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (const ActionKind kind : {ActionKind::kUnshard, ActionKind::kReshard}) {
      schedule.ranks[rank].push_back(PipelineAction{kind, rank});
    }
  }
  EXPECT_TRUE(PlayTokenGame(schedule, 0).has_more);
  EXPECT_TRUE(PlayTokenGame(schedule, 20).has_more);
  EXPECT_FALSE(PlayTokenGame(schedule, 21).has_more);
}

}  // namespace
}  // namespace weft
