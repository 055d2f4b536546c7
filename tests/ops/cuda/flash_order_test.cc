// The order in which blocks of attention take tiles.

#include "ops/cuda/attention/flash_order.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace weft {
namespace {

TEST(FlashOrderTest, EveryTileOfEveryHeadOnce) {
  constexpr int64_t kMiB = 1 << 20;
  for (int64_t rows : {1, 128, 129, 1000}) {
    for (int64_t heads : {1, 2, 5, 12}) {
      for (int64_t head_bytes : {int64_t{0}, kMiB, 3 * kMiB, 8 * kMiB, 100 * kMiB}) {
        const FlashOrder order = FlashOrder::Of(rows, 128, heads, head_bytes);
        std::set<std::pair<int, int>> met;
        for (unsigned block = 0; block < order.blocks(); ++block) {
          const auto [tile, head] = order.Find(block);
          EXPECT_TRUE(tile >= 0 && tile < (rows + 127) / 128 && head >= 0 && head < heads);
          EXPECT_TRUE(met.insert({tile, head}).second) << tile << " of " << head;
        }
        EXPECT_EQ(static_cast<int64_t>(met.size()), (rows + 127) / 128 * heads);
      }
    }
  }
}

// 16 MiB hold two heads of 6: tiles 0 of both, then tiles 1, then the next two heads.
TEST(FlashOrderTest, HeadsThatFitTheCacheTakeTurns) {
  const FlashOrder order = FlashOrder::Of(/*rows=*/256, /*tile_rows=*/128, /*heads=*/3, int64_t{6} << 20);
  std::vector<FlashOrder::Place> found;
  for (unsigned block = 0; block < order.blocks(); ++block) found.push_back(order.Find(block));
  EXPECT_EQ(found, (std::vector<FlashOrder::Place>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2}, {1, 2}}));
}

}  // namespace
}  // namespace weft
