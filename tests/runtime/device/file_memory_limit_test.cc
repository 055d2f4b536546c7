// Memory in a file is no part of what the system counts as a process's data. Sanitizers have data of their own, so this
// is not run under them.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/error.h"
#include "runtime/device/allocator.h"

namespace weft {
namespace {

// In a process of its own: the limit is the process's.
TEST(FileMemoryLimitTest, IsNoDataOfTheProcess) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit = {64 << 20, 64 << 20};
    if (setrlimit(RLIMIT_DATA, &limit) != 0) _exit(2);
    try {
      const std::shared_ptr<Allocator> in_file = MakeFileAllocator(testing::TempDir());
      constexpr int64_t kBytes = 192 << 20;
      auto* const block = static_cast<char*>(in_file->Allocate(kBytes));
      for (int64_t at = 0; at < kBytes; at += 4096) block[at] = static_cast<char>(at >> 12);
      for (int64_t at = 0; at < kBytes; at += 4096) {
        if (block[at] != static_cast<char>(at >> 12)) _exit(3);
      }
      in_file->Deallocate(block, kBytes);
    } catch (const Error&) {
      _exit(4);
    }
    try {
      MakeCpuAllocator()->Allocate(192 << 20);
      _exit(5);
    } catch (const Error&) {
    }
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace weft
