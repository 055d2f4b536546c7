// A segment is made while signals come all the time, as a profiler's.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "gtest/gtest.h"
#include "runtime/comm/gloo/shared_segment.h"

namespace {

// What is got between two signals.
constexpr off_t kBetweenSignals = 32 << 10;

int num_interrupted = 0;

}  // namespace

// The C library's, as tmpfs answers in Debian 12's kernel: a signal ends the call, and what it had got by then is given back.
// Later kernels listen to signals that kill only, so signals alone would show nothing there.
extern "C" int posix_fallocate(int descriptor, off_t begin, off_t num_bytes) {
  if (num_bytes > kBetweenSignals) {
    ++num_interrupted;
    return EINTR;
  }
  return fallocate(descriptor, /*mode=*/0, begin, num_bytes) == 0 ? 0 : errno;
}

namespace weft {
namespace {

TEST(InterruptedSegmentTest, SignalsDoNotKeepItFromBeingMade) {
  for (const int64_t num_bytes : {int64_t{1}, int64_t{3} << 20, (int64_t{3} << 20) + 1}) {
    const auto segment = SharedSegment::Make("/dev/shm", num_bytes);
    EXPECT_EQ(segment->data()[num_bytes - 1], 0);
    const auto opened = SharedSegment::Open(segment->address(), "/dev/shm", num_bytes);
    EXPECT_EQ(opened->data()[num_bytes - 1], 0);
  }
  EXPECT_GT(num_interrupted, 0);
}

}  // namespace
}  // namespace weft
