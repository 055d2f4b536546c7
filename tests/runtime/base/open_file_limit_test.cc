#include "runtime/base/open_file_limit.h"

#include <sys/resource.h>

#include <algorithm>

#include "gtest/gtest.h"

namespace weft {
namespace {

rlimit Limit() {
  rlimit limit = {};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  return limit;
}

TEST(OpenFileLimitTest, TheSoftLimitIsRaisedToTheHardOne) {
  const rlimit before = Limit();
  const rlimit low = {64, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  RaiseOpenFileLimit();
  EXPECT_EQ(Limit().rlim_cur, std::min<rlim_t>(before.rlim_max, 1048576));
  EXPECT_EQ(Limit().rlim_max, before.rlim_max);
  // What is as high already stays.
  const rlimit high = {before.rlim_max, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &high), 0);
  RaiseOpenFileLimit();
  EXPECT_EQ(Limit().rlim_cur, before.rlim_max);
}

}  // namespace
}  // namespace weft
