// A segment is made while signals come all the time, as a profiler's.

#include "gtest/gtest.h"
#include "runtime/comm/gloo/shared_segment.h"
#include "tests/runtime/base/interrupted_fallocate.h"

namespace weft {
namespace {

TEST(InterruptedSegmentTest, SignalsDoNotKeepItFromBeingMade) {
  for (const int64_t num_bytes : {int64_t{1}, int64_t{3} << 20, (int64_t{3} << 20) + 1}) {
    const auto segment = SharedSegment::Make("/dev/shm", num_bytes);
    EXPECT_EQ(segment->data()[num_bytes - 1], 0);
    const auto opened = SharedSegment::Open(segment->address(), "/dev/shm", num_bytes);
    EXPECT_EQ(opened->data()[num_bytes - 1], 0);
  }
  EXPECT_GT(NumInterruptedCalls(), 0);
}

}  // namespace
}  // namespace weft
