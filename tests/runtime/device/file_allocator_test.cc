// Memory in a file: as any other to who uses it, and no part of the process's data.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/device/allocator.h"
#include "runtime/device/device_backend.h"
#include "tests/message_of.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Folder() { return testing::TempDir(); }

// What the file system has for the file that the process holds open without a name.
int64_t BytesOnDisk() {
  int64_t blocks = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.find("weft-memory-") == std::string::npos) continue;
    struct stat status = {};
    if (stat(entry.path().c_str(), &status) == 0) blocks += status.st_blocks;
  }
  return blocks * 512;
}

TEST(FileAllocatorTest, BlocksAreAlignedWritableAndDisjoint) {
  const std::shared_ptr<Allocator> allocator = MakeFileAllocator(Folder());
  EXPECT_EQ(allocator->device(), Device{DeviceType::kCpu});
  std::mt19937 random(1);
  struct Block {
    char* data;
    int64_t size;
    char fill;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 400; ++i) {
    if (!blocks.empty() && random() % 3 == 0) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      const Block& block = blocks.back();
      for (int64_t at = 0; at < block.size; at += 997) ASSERT_EQ(block.data[at], block.fill);
      allocator->Deallocate(block.data, block.size);
      blocks.pop_back();
      continue;
    }
    const int64_t size = static_cast<int64_t>(random() % (3 << 20));
    char* const data = static_cast<char*>(allocator->Allocate(size));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    std::memset(data, static_cast<char>(i), size);
    blocks.push_back({data, size, static_cast<char>(i)});
  }
  for (const Block& block : blocks) {
    for (int64_t at = 0; at < block.size; ++at) ASSERT_EQ(block.data[at], block.fill);
    allocator->Deallocate(block.data, block.size);
  }
  EXPECT_EQ(allocator->stats().live_bytes, 0);
}

// As other allocators' blocks: a thread may be given the address that another one has just given back to the system.
TEST(FileAllocatorTest, ThreadsHaveBlocksOfTheirOwn) {
  constexpr int64_t kKibibyte = 1 << 10;
  // So little that a block of one size takes the place of those of others.
  const std::shared_ptr<Allocator> allocator = MakeFileAllocator(Folder(), /*cap_bytes=*/1024 * kKibibyte);
  int num_lost[2] = {};
  const auto use = [&](int thread) {
    std::mt19937 random(thread);
    for (int i = 0; i < 5000; ++i) {
      const auto size = static_cast<int64_t>(65 + random() % 400) * kKibibyte;
      auto* const data = static_cast<char*>(allocator->Allocate(size));
      const char fill = static_cast<char>(2 * (i % 60) + 1 + thread);
      data[0] = data[size - 1] = fill;
      std::this_thread::yield();
      if (data[0] != fill || data[size - 1] != fill) ++num_lost[thread];
      allocator->Deallocate(data, size);
    }
  };
  std::thread other([&] { use(1); });
  use(0);
  other.join();
  EXPECT_EQ(num_lost[0] + num_lost[1], 0);
  EXPECT_EQ(allocator->stats().live_bytes, 0);
}

TEST(FileAllocatorTest, TheDiskHasWhatTheAllocatorHolds) {
  constexpr int64_t kBytes = 48 << 20;  // more than a pool keeps
  auto allocator = MakeFileAllocator(Folder());
  void* const block = allocator->Allocate(kBytes);
  EXPECT_GE(BytesOnDisk(), kBytes);
  allocator->Deallocate(block, kBytes);
  void* const small = allocator->Allocate(64);
  allocator->Deallocate(small, 64);
  allocator.reset();
  EXPECT_EQ(BytesOnDisk(), 0);
}

TEST(FileAllocatorTest, MistakesAreNamed) {
  EXPECT_THAT(MessageOf([] { MakeFileAllocator("/nowhere/at/all"); }),
              AllOf(HasSubstr("memory in a file: folder '/nowhere/at/all': No such file"),
                    HasSubstr("expected one in which files can be made")));
  const std::shared_ptr<Allocator> capped = MakeFileAllocator(Folder(), /*cap_bytes=*/1 << 20);
  EXPECT_THAT(MessageOf([&] { capped->Allocate(2 << 20); }), HasSubstr("2097152"));
}

// A file can be no larger than the process may make one: as a disk that is full.
TEST(FileAllocatorTest, AFullDiskIsAnError) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {8 << 20, 8 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
    const std::shared_ptr<Allocator> allocator = MakeFileAllocator(Folder());
    void* const fits = allocator->Allocate(4 << 20);
    try {
      allocator->Allocate(16 << 20);
      _exit(3);
    } catch (const Error& error) {
      if (error.code() != absl::StatusCode::kResourceExhausted) _exit(4);
      // The machine's own memory is not what is short.
      if (error.message().find("in the file of folder '" + Folder() + "'") == std::string::npos) _exit(5);
    }
    std::memset(fits, 1, 4 << 20);
    allocator->Deallocate(fits, 4 << 20);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// A block of so many bytes that has come back, as its next owner finds it.
std::vector<unsigned char> BytesOfReturned(Allocator& allocator, int64_t size) {
  void* const block = allocator.Allocate(size);
  std::memset(block, 7, static_cast<size_t>(size));
  allocator.Deallocate(block, size);
  auto* const again = static_cast<unsigned char*>(allocator.Allocate(size));
  EXPECT_EQ(again, block);
  const std::vector<unsigned char> bytes(again, again + size);
  allocator.Deallocate(again, size);
  return bytes;
}

TEST(HostAllocatorTest, FillsWhatComesBackIfItIsToldTo) {
  for (const int64_t size : {1, 1000, 3 << 20}) {
    for (const bool fill_freed : {false, true}) {
      const auto allocator =
          MakeHostAllocator(DeviceType::kCpu, {.fill_freed = fill_freed, .offload_folder = Folder()});
      const std::vector<unsigned char> bytes = BytesOfReturned(*allocator, size);
      const unsigned char expected = fill_freed ? 0xff : 7;
      EXPECT_EQ(std::count(bytes.begin(), bytes.end(), expected), size);
    }
  }
}

TEST(HostAllocatorTest, EveryDeviceHasOne) {
  EXPECT_EQ(MakeHostAllocator(DeviceType::kCpu, {.offload_folder = Folder()})->device().type,
            DeviceType::kCpu);
  EXPECT_EQ(MakeHostAllocator(DeviceType::kMeta)->device().type, DeviceType::kMeta);
}

}  // namespace
}  // namespace weft
