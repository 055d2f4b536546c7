#include "dtensor/checkpoint/dcp/coverage.h"

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace weft {
namespace {

// Beside counting how often each element is had.
TEST(CoverageTest, AgreesWithCountingElements) {
  std::mt19937_64 random(11);
  int num_overlaps = 0, num_whole = 0;
  for (int round = 0; round < 3000; ++round) {
    const Shape tensor = {static_cast<int64_t>(random() % 4 + 1), static_cast<int64_t>(random() % 3 + 1),
                          static_cast<int64_t>(random() % 3 + 1)};
    const auto some = [&] {
      Region region = {{0, 0, 0}, {0, 0, 0}};
      for (int dim = 0; dim < 3; ++dim) {
        region.offset[dim] = static_cast<int64_t>(random() % static_cast<uint64_t>(tensor[dim]));
        region.shape[dim] = random() % 16 == 0
                                ? 0
                                : static_cast<int64_t>(
                                      random() % static_cast<uint64_t>(tensor[dim] - region.offset[dim]) + 1);
      }
      return region;
    };
    const auto holds = [](const Region& region, int64_t i, int64_t j, int64_t k) {
      const int64_t at[] = {i, j, k};
      for (int dim = 0; dim < 3; ++dim) {
        if (at[dim] < region.offset[dim] || at[dim] >= region.offset[dim] + region.shape[dim]) return false;
      }
      return true;
    };
    const Region whole = some();
    Uncovered uncovered(whole);
    std::vector<Region> pieces;
    for (uint64_t piece = 0; piece < 1 + random() % 5; ++piece) {
      pieces.push_back(some());
      bool overlaps = false;
      for (int64_t i = 0; i < tensor[0]; ++i) {
        for (int64_t j = 0; j < tensor[1]; ++j) {
          for (int64_t k = 0; k < tensor[2]; ++k) {
            bool before = false;
            for (size_t p = 0; p + 1 < pieces.size(); ++p) before |= holds(pieces[p], i, j, k);
            overlaps |= before && holds(whole, i, j, k) && holds(pieces.back(), i, j, k);
          }
        }
      }
      EXPECT_EQ(uncovered.Cut(pieces.back()), !overlaps);
      num_overlaps += overlaps;
    }
    for (int64_t i = 0; i < tensor[0]; ++i) {
      for (int64_t j = 0; j < tensor[1]; ++j) {
        for (int64_t k = 0; k < tensor[2]; ++k) {
          bool had = false;
          int in_rest = 0;
          for (const Region& piece : pieces) had |= holds(piece, i, j, k);
          for (const Region& box : uncovered.boxes()) in_rest += holds(box, i, j, k);
          EXPECT_EQ(in_rest, holds(whole, i, j, k) && !had);
        }
      }
    }
    for (const Region& box : uncovered.boxes()) EXPECT_FALSE(box.empty());
    num_whole += !whole.empty() && uncovered.boxes().empty();
  }
  EXPECT_GT(num_overlaps, 100);
  EXPECT_GT(num_whole, 100);
}

TEST(CoverageTest, AScalar) {
  Uncovered uncovered({{}, {}});
  EXPECT_EQ(uncovered.boxes().size(), 1u);
  EXPECT_TRUE(uncovered.Cut({{}, {}}));
  EXPECT_TRUE(uncovered.boxes().empty());
  EXPECT_FALSE(uncovered.Cut({{}, {}}));
}

}  // namespace
}  // namespace weft
