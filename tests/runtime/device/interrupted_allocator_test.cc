// Memory in a file is got while signals come: they are no lack of memory.

#include <cstdint>
#include <memory>

#include "gtest/gtest.h"
#include "runtime/device/allocator.h"
#include "tests/runtime/base/interrupted_fallocate.h"

namespace weft {
namespace {

TEST(InterruptedAllocatorTest, SignalsAreNoLackOfMemory) {
  const std::shared_ptr<Allocator> allocator = MakeFileAllocator("/dev/shm");
  constexpr int64_t kBytes = 3 << 20;
  auto* const block = static_cast<char*>(allocator->Allocate(kBytes));
  for (int64_t at = 0; at < kBytes; at += 4096) block[at] = 1;
  allocator->Deallocate(block, kBytes);
  EXPECT_GT(NumInterruptedCalls(), 0);
}

}  // namespace
}  // namespace weft
