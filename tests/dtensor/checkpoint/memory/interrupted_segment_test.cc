// Memory for a snapshot is got while signals come, such as the one that tells a run to stop.

#include <string>

#include "dtensor/checkpoint/memory/segment.h"
#include "gtest/gtest.h"
#include "tests/dtensor/checkpoint/memory/test_nodes.h"
#include "tests/message_of.h"
#include "tests/runtime/base/interrupted_fallocate.h"

namespace weft {
namespace {

TEST(InterruptedSegmentTest, SignalsDoNotKeepItFromItsSize) {
  const TestNodes nodes(/*num_nodes=*/1, /*ranks_per_node=*/1);
  MemorySegment segment(nodes.MemoryOf(0).paths.at(0));
  for (const int64_t num_bytes : {int64_t{3} << 20, int64_t{0}, (int64_t{3} << 20) + 1, int64_t{1} << 20}) {
    EXPECT_EQ(MessageOf([&] { segment.Resize(num_bytes); }), "no error");
    EXPECT_EQ(segment.num_bytes(), num_bytes);
  }
  EXPECT_GT(NumInterruptedCalls(), 0);
}

}  // namespace
}  // namespace weft
