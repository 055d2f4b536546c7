#include "runtime/tensor/loop_nest.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace weft {
namespace {

TEST(LoopNest, ContiguousArraysAreOneLoop) {
  EXPECT_EQ(MakeLoopNest({2, 3, 4}, {12, 4, 1}, {12, 4, 1}), (LoopNest{{24}, {1}, {1}}));
  EXPECT_EQ(MakeLoopNest({}, {}, {}), (LoopNest{{1}, {1}, {1}}));
  EXPECT_EQ(MakeLoopNest({1, 1}, {9, 9}, {1, 5}), (LoopNest{{1}, {1}, {1}}));
}

// Both transposed alike: the order of visits is free, so it is one loop still.
TEST(LoopNest, SortsByTheTarget) {
  EXPECT_EQ(MakeLoopNest({4, 3}, {1, 4}, {1, 4}), (LoopNest{{12}, {1}, {1}}));
  EXPECT_EQ(MakeLoopNest({4, 3}, {3, 1}, {1, 4}), (LoopNest{{3, 4}, {1, 3}, {4, 1}}));
}

// A slice of columns, packed: rows do not merge in the source. [2, 3] rows of a [., 8] array.
TEST(LoopNest, MergesOnlyWhatBothAllow) {
  EXPECT_EQ(MakeLoopNest({5, 2, 3}, {16, 8, 1}, {6, 3, 1}), (LoopNest{{10, 3}, {8, 1}, {3, 1}}));
  EXPECT_EQ(MakeLoopNest({5, 1, 3}, {8, 77, 1}, {3, 99, 1}), (LoopNest{{5, 3}, {8, 1}, {3, 1}}));
}

// An expanded source: stride 0 merges with itself.
TEST(LoopNest, RepeatedSource) {
  EXPECT_EQ(MakeLoopNest({2, 3, 4}, {0, 0, 1}, {12, 4, 1}), (LoopNest{{6, 4}, {0, 1}, {4, 1}}));
}

TEST(ForEachOuter, VisitsOffsetsInOrder) {
  const LoopNest nest = {{2, 3, 4}, {100, 10, 1}, {12, 4, 1}};
  std::vector<std::pair<int64_t, int64_t>> visits;
  const auto record = [&](int64_t from, int64_t to) { visits.emplace_back(from, to); };
  ForEachOuter(nest, 1, record);
  EXPECT_EQ(visits, (std::vector<std::pair<int64_t, int64_t>>{
                        {0, 0}, {10, 4}, {20, 8}, {100, 12}, {110, 16}, {120, 20}}));
  visits.clear();
  ForEachOuter(nest, 3, record);
  EXPECT_EQ(visits, (std::vector<std::pair<int64_t, int64_t>>{{0, 0}}));
  visits.clear();
  ForEachOuter({{2, 0}, {1, 1}, {1, 1}}, 1, record);
  EXPECT_TRUE(visits.empty());
}

}  // namespace
}  // namespace weft
