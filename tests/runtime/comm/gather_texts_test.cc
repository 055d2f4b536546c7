#include "runtime/comm/gather_texts.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/device/allocator.h"
#include "runtime/launch/run_ranks.h"

namespace weft {
namespace {

// Empty texts, zero bytes and unlike lengths; a group of one, and one where nobody says anything.
TEST(GatherTextsTest, EverybodyHasAll) {
  for (const int size : {1, 3, 4}) {
    RunRanks(size, [&](World& world) {
      const std::vector<std::string> said = {std::string("a\0b", 3), "", std::string(5000, '\xff'), "last"};
      std::vector<int> ranks;
      for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
      const auto group = world.NewGroup("texts", ranks);
      const std::vector<std::string> expected(said.begin(), said.begin() + size);
      EXPECT_EQ(AllGatherTexts(*group, said[static_cast<size_t>(world.rank())], MakeCpuAllocator()),
                expected);
      EXPECT_EQ(AllGatherTexts(*group, "", MakeCpuAllocator()), std::vector<std::string>(size));
    });
  }
}

}  // namespace
}  // namespace weft
