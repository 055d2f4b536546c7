#include "runtime/base/file_space.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "gtest/gtest.h"
#include "tests/runtime/base/interrupted_fallocate.h"

namespace weft {
namespace {

TEST(FileSpaceTest, IsGotBetweenSignals) {
  for (const int64_t offset : {int64_t{0}, int64_t{1} << 20}) {
    for (const int64_t num_bytes : {int64_t{1}, int64_t{3} << 20, (int64_t{3} << 20) + 1}) {
      const int file = memfd_create("file_space_test", MFD_CLOEXEC);
      ASSERT_GE(file, 0);
      EXPECT_EQ(GetFileSpace(file, offset, num_bytes), 0);
      struct stat status = {};
      ASSERT_EQ(fstat(file, &status), 0);
      EXPECT_EQ(status.st_size, offset + num_bytes);
      EXPECT_GE(status.st_blocks * 512, num_bytes);
      close(file);
    }
  }
  EXPECT_GT(NumInterruptedCalls(), 0);
}

TEST(FileSpaceTest, OtherErrorsAreTold) {
  EXPECT_EQ(GetFileSpace(/*descriptor=*/-1, 0, 1), EBADF);
  EXPECT_EQ(GetFileSpace(/*descriptor=*/-1, 0, 0), 0);
}

}  // namespace
}  // namespace weft
