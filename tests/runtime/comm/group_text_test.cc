#include "runtime/comm/group_text.h"

#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/store/store.h"
#include "tests/message_of.h"

namespace weft {
namespace {

TEST(GroupTextTest, SetsOfRanksAreShort) {
  const std::map<std::vector<int>, std::string> texts = {
      {std::vector<int>(), ""},
      {{7}, "7"},
      {{0, 1}, "0-1"},
      {{0, 1, 2, 3, 8}, "0-3,8"},
      {{0, 2}, "0,2"},
      {{0, 2, 4}, "0-4:2"},
      {{1, 5, 9, 10, 11}, "1-9:4,10-11"},
      {{0, 3, 4, 5}, "0,3-5"},
      {{0, 2, 5, 8}, "0,2-8:3"},
  };
  for (const auto& [ranks, text] : texts) {
    EXPECT_EQ(RankSetText(ranks), text);
    EXPECT_EQ(ParseRankSet(text), ranks);
  }
}

TEST(GroupTextTest, WhatIsNoSetOfRanksIsRefused) {
  for (const char* text : {"x", "1,", "1-x", "-1", "0-4:0", "0-4:x", "0-2-4"}) {
    EXPECT_EQ(InvalidArgumentMessage([&] { ParseRankSet(text); }),
              std::string("not a set of ranks: '") + text + "'");
  }
}

TEST(GroupTextTest, NoTwoSetsOfRanksHaveOneText) {
  std::map<std::string, int> sets;
  for (int set = 0; set < 1 << 12; ++set) {
    std::vector<int> ranks;
    for (int rank = 0; rank < 12; ++rank) {
      if ((set >> rank & 1) != 0) ranks.push_back(rank);
    }
    const auto [found, is_new] = sets.try_emplace(RankSetText(ranks), set);
    EXPECT_EQ(ParseRankSet(found->first), ranks);
    EXPECT_TRUE(is_new) << RankSetText(ranks) << " of " << found->second << " and " << set;
  }
}

// As keys of a group's meeting have it: dp beside a tp of 2.
TEST(GroupTextTest, TheRanksOfAnAxisFitIntoAKey) {
  for (const int stride : {1, 2, 8}) {
    std::vector<int> ranks;
    for (int member = 0; member < 100'000; ++member) ranks.push_back(member * stride);
    EXPECT_LT(static_cast<int64_t>(RankSetText(ranks).size()), Store::kMaxKeyBytes / 100);
  }
}

}  // namespace
}  // namespace weft
