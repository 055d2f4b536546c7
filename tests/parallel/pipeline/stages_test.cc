// How chains of segments are cut into stages, against every cut there is.

#include "parallel/pipeline/stages.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::ElementsAre;

TEST(StageRanksTest, RoundAndRoundOrThereAndBack) {
  EXPECT_THAT(StageRanks(StageOrder::kLoop, 3, 1), ElementsAre(0, 1, 2));
  EXPECT_THAT(StageRanks(StageOrder::kLoop, 3, 2), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(StageRanks(StageOrder::kV, 3, 2), ElementsAre(0, 1, 2, 2, 1, 0));
  EXPECT_EQ(MessageOf([] { StageRanks(StageOrder::kV, 3, 1); }),
            "stages that lie there and back: expected 2 chunks, got 1");
}

// The costliest part and the sum of squares of a cut.
std::pair<double, double> Measure(const std::vector<double>& costs, const std::vector<int>& lengths) {
  double most = 0, squares = 0;
  int begin = 0;
  for (const int length : lengths) {
    double cost = 0;
    for (int i = begin; i < begin + length; ++i) cost += costs[i];
    most = std::max(most, cost);
    squares += cost * cost;
    begin += length;
  }
  return {most, squares};
}

void ForEachCut(int n, int parts, std::vector<int>* lengths, const std::function<void()>& visit) {
  if (parts == 1) {
    lengths->push_back(n);
    visit();
    lengths->pop_back();
    return;
  }
  for (int first = 1; first <= n - parts + 1; ++first) {
    lengths->push_back(first);
    ForEachCut(n - first, parts - 1, lengths, visit);
    lengths->pop_back();
  }
}

TEST(BalanceChainTest, IsTheBestOfAllCuts) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    const int n = 1 + static_cast<int>(random() % 10);
    const int parts = 1 + static_cast<int>(random() % n);
    std::vector<double> costs;  // whole numbers: sums are exact
    for (int i = 0; i < n; ++i) costs.push_back(static_cast<double>(random() % 5));
    std::pair best = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    std::vector<int> lengths;
    ForEachCut(n, parts, &lengths, [&] { best = std::min(best, Measure(costs, lengths)); });
    const std::vector<int> cut = BalanceChain(costs, parts);
    ASSERT_EQ(static_cast<int>(cut.size()), parts);
    EXPECT_EQ(Measure(costs, cut), best) << testing::PrintToString(costs) << " in " << parts;
  }
}

TEST(BalanceChainTest, EqualCostsAreDividedEvenlyAndDearEndsGetLess) {
  EXPECT_THAT(BalanceChain(std::vector<double>(12, 1), 4), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(BalanceChain(std::vector<double>(10, 1), 4), ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(BalanceChain({1, 1, 1, 1, 1, 1, 1, 4}, 3), ElementsAre(4, 3, 1));
}

// Costs in any unit: squares and sums of these are infinite, or 0.
TEST(BalanceChainTest, TheUnitDoesNotMatter) {
  for (const double unit : {0x1p0, 0x1p700, 0x1p1023, 0x1p-700, 0x1p-1074}) {
    EXPECT_THAT(BalanceChain(std::vector<double>(10, unit), 4), ElementsAre(3, 3, 2, 2)) << unit;
  }
  EXPECT_THAT(BalanceChain(std::vector<double>(4, 1e200), 2), ElementsAre(2, 2));
  EXPECT_THAT(BalanceChain({0, 0, 0}, 2), ElementsAre(2, 1));
}

TEST(BalanceChainTest, WhatCannotBeCutIsSaid) {
  EXPECT_EQ(MessageOf([] {
              BalanceChain({1, 2}, 3);
            }),
            "a chain of 2 segments cannot be cut into 3 stages: each has at least one");
  EXPECT_EQ(MessageOf([] {
              BalanceChain({1, NAN}, 1);
            }),
            "the cost of segment 1 is nan; expected a finite number, at least 0");
}

}  // namespace
}  // namespace weft
