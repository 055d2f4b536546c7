#include "runtime/device/allocator.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/file_space.h"
#include "runtime/device/pooled_allocator.h"

namespace weft {
namespace {

// Pages of 4 KiB would cost a mapping each; a block is this many bytes at least, and ends where one of them ends.
constexpr int64_t kExtent = int64_t{64} << 10;

int64_t RoundUpToExtent(int64_t num_bytes) { return (num_bytes + kExtent - 1) / kExtent * kExtent; }

// Without a name: it is gone with its last owner, however that ends.
int OpenUnnamed(const std::string& folder) {
  std::string path = absl::StrCat(folder, "/weft-memory-XXXXXX");
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) {
    Throw(absl::StatusCode::kFailedPrecondition, "memory in a file: folder '", folder,
          "': ", std::strerror(errno), "; expected one in which files can be made");
  }
  unlink(path.c_str());
  return file;
}

// Blocks are runs of one file, each mapped where it was taken. The disk's space for a block is there before the block
// is handed out, so that writing to it cannot fail.
class FileAllocator final : public PooledAllocator {
 public:
  FileAllocator(const std::string& folder, int64_t cap_bytes, bool fill_freed)
      : PooledAllocator(cap_bytes, /*guards=*/fill_freed),
        folder_(folder.empty() ? TemporaryFolder() : folder),
        file_(OpenUnnamed(folder_)) {}
  ~FileAllocator() override {
    ReturnPoolToSystem();
    close(file_);
  }

  Device device() const override { return {DeviceType::kCpu}; }

 protected:
  void* TakeFromSystem(int64_t num_bytes) override {
    const int64_t length = RoundUpToExtent(num_bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t offset = TakeRun(length);
    void* block = nullptr;
    if (GetFileSpace(file_, offset, length) == 0) {
      block = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
      if (block == MAP_FAILED) block = nullptr;
    }
    if (block == nullptr) {
      GiveRun(offset, length);
      return nullptr;
    }
    offsets_[block] = offset;
    return block;
  }

  void ReturnToSystem(void* block, int64_t num_bytes) noexcept override {
    const int64_t length = RoundUpToExtent(num_bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    munmap(block, length);  // under the lock: from here on another thread may be given the address
    const auto found = offsets_.find(block);
    GiveRun(found->second, length);
    offsets_.erase(found);
  }

  std::string PlaceText() const override {
    return absl::StrCat("cpu, in the file of folder '", folder_, "'");
  }

 private:
  // The first free run that is long enough, or one at the end.
  int64_t TakeRun(int64_t length) {
    for (auto run = free_runs_.begin(); run != free_runs_.end(); ++run) {
      const auto [offset, free_length] = *run;
      if (free_length < length) continue;
      free_runs_.erase(run);
      if (free_length > length) free_runs_[offset + length] = free_length - length;
      return offset;
    }
    const int64_t offset = end_;
    end_ += length;
    return offset;
  }

  // Its space on the disk goes back, too. Joins its neighbours.
  void GiveRun(int64_t offset, int64_t length) noexcept {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
    const auto next = free_runs_.lower_bound(offset);
    if (next != free_runs_.end() && next->first == offset + length) {
      length += next->second;
      free_runs_.erase(next);
    }
    const auto after = free_runs_.lower_bound(offset);
    if (after != free_runs_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == offset) {
        before->second += length;
        return;
      }
    }
    free_runs_[offset] = length;
  }

  const std::string folder_;
  const int file_;
  std::mutex mutex_;
  int64_t end_ = 0;                         // of the file
  std::map<int64_t, int64_t> free_runs_;    // offset, length
  std::map<const void*, int64_t> offsets_;  // of mapped blocks
};

}  // namespace

std::shared_ptr<Allocator> MakeFileAllocator(const std::string& folder, int64_t cap_bytes, bool fill_freed) {
  return std::make_shared<FileAllocator>(folder, cap_bytes, fill_freed);
}

}  // namespace weft
