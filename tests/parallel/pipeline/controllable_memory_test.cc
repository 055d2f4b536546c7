// V-Half and V-Min: what their paper promises (Qi et al., "Pipeline Parallelism with Controllable Memory",
// 2024), and the optimum by brute force where that can be had.

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/pipeline/checker.h"
#include "parallel/pipeline/generator.h"

namespace weft {
namespace {

struct Promise {
  const char* name;
  int ranks_over;  // peak: (ranks + ranks_over) / divisor microbatches, rounded down
  int divisor;
  double bubble_per_rank;  // in units of F = I = W = 1: 3 times the paper's bubble rate, p/2m and 2p/3m
};

constexpr Promise kPromises[] = {{"v_half", 2, 2, 1.5}, {"v_min", 4, 3, 2}};

TEST(ControllableMemoryTest, PeaksAndMakespansAreThePapers) {
  for (const Promise& promise : kPromises) {
    for (int ranks = 2; ranks <= 16; ++ranks) {
      for (int microbatches : {ranks, ranks + 1, 2 * ranks, 4 * ranks, 8 * ranks}) {
        const ScheduleCertificate certificate =
            CheckSchedule(GenerateSchedule(promise.name, {.ranks = ranks, .microbatches = microbatches}));
        const std::string what = absl::StrCat(promise.name, " p=", ranks, " m=", microbatches);
        ASSERT_TRUE(certificate.ok) << what << ": " << certificate.error;
        const auto& peaks = certificate.holdings.peak_w;
        EXPECT_EQ(*std::max_element(peaks.begin(), peaks.end()),
                  2 * ((ranks + promise.ranks_over) / promise.divisor))
            << what;
        EXPECT_LE(certificate.timeline.bubble, promise.bubble_per_rank * ranks) << what;
      }
    }
  }
}

TEST(ControllableMemoryTest, FewMicrobatchesHoldNoMore) {
  for (const Promise& promise : kPromises) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      for (int microbatches = 1; microbatches < ranks; ++microbatches) {
        const ScheduleCertificate certificate =
            CheckSchedule(GenerateSchedule(promise.name, {.ranks = ranks, .microbatches = microbatches}));
        ASSERT_TRUE(certificate.ok) << certificate.error;
        for (int peak : certificate.holdings.peak_w) {
          EXPECT_LE(peak, 2 * std::min(microbatches, (ranks + promise.ranks_over) / promise.divisor));
        }
      }
    }
  }
}

// The fewest units in which two ranks, stages 0 and 3, 1 and 2, run all F, I and W of one unit each and hold
// at most `cap` chunks: all states, unit by unit. A state is how many microbatches each stage's F and I and
// each rank's W has had.
using State = std::array<uint8_t, 10>;  // F of stages 0..3, I of stages 0..3, W of ranks 0 and 1

std::vector<State> AfterOneUnit(const State& state, int rank, int microbatches, int cap) {
  const int stages[] = {rank, 3 - rank};
  const int held = state[stages[0]] + state[stages[1]] - state[8 + rank];
  std::vector<State> next = {state};
  const auto run = [&](int what) { ++next.emplace_back(state)[what]; };
  for (int s : stages) {
    if (state[s] < microbatches && held < cap && (s == 0 || state[s - 1] > state[s])) run(s);
    if (state[4 + s] < state[s] && (s == 3 || state[4 + s + 1] > state[4 + s])) run(4 + s);
  }
  if (state[8 + rank] < state[4 + stages[0]] + state[4 + stages[1]]) run(8 + rank);
  return next;
}

int FewestUnits(int microbatches, int cap) {
  std::set<State> states = {State{}};
  for (int units = 0;; ++units) {
    std::set<State> next;
    for (const State& state : states) {
      if (state[8] == 2 * microbatches && state[9] == 2 * microbatches) return units;
      const std::vector<State> first = AfterOneUnit(state, 0, microbatches, cap);
      const std::vector<State> second = AfterOneUnit(state, 1, microbatches, cap);
      for (const State& a : first) {
        for (const State& b : second) {
          State both = a;  // what the unit has changed on either rank
          for (size_t i = 0; i < both.size(); ++i) both[i] = a[i] + b[i] - state[i];
          next.insert(both);
        }
      }
    }
    states.swap(next);
  }
}

TEST(ControllableMemoryTest, OnTwoRanksNothingIsShorter) {
  for (int microbatches = 1; microbatches <= 4; ++microbatches) {
    const double fewest = FewestUnits(microbatches, /*cap=*/4) / 2.0;  // a unit is a chunk's: half a rank's
    for (const Promise& promise : kPromises) {
      const ScheduleCertificate certificate =
          CheckSchedule(GenerateSchedule(promise.name, {.ranks = 2, .microbatches = microbatches}));
      EXPECT_EQ(certificate.timeline.makespan, fewest) << promise.name << " m=" << microbatches;
    }
  }
  EXPECT_GT(FewestUnits(/*microbatches=*/2, /*cap=*/2), FewestUnits(2, 4));  // the cap is in force
}

}  // namespace
}  // namespace weft
