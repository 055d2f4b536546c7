#include "dtensor/checkpoint/state/folder_lock.h"

#include <unistd.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr std::chrono::milliseconds kLook(50);

std::string ThisProcess() {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) return absl::StrCat("process ", getpid());
  return absl::StrCat("process ", getpid(), " on ", host);
}

// Where the file cannot be opened, another user's say, nobody is kept from anything.
std::unique_ptr<FileLock> TryLock(Files& files, const std::string& path, const std::string& text) {
  try {
    return files.TryLock(path, text);
  } catch (const Error&) {
    return std::make_unique<FileLock>();
  }
}

// What a holder writes, a line each.
struct Holder {
  std::string run_id;
  int64_t generation = -1;
  std::string process;
};

Holder HolderIn(Files& files, const std::string& path) {
  Holder holder;
  try {
    const std::vector<std::string> lines =
        absl::StrSplit(ReadText(files, path, /*max_bytes=*/4096), absl::MaxSplits('\n', 2));
    if (lines.size() == 3 && absl::SimpleAtoi(lines[1], &holder.generation)) {
      holder.run_id = lines[0];
      holder.process = lines[2];
    }
  } catch (const Error&) {
    // Then it is not known.
  }
  return holder;
}

}  // namespace

FolderLock::FolderLock(Files& files, const std::string& folder, const std::string& run_id, int64_t generation,
                       std::chrono::milliseconds patience)
    : files_(files),
      path_(JoinPath(folder, kLockName)),
      text_(absl::StrCat(run_id, "\n", generation, "\n", ThisProcess())) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while ((lock_ = TryLock(files_, path_, text_)) == nullptr) {
    if (std::chrono::steady_clock::now() >= deadline) {
      const Holder holder = HolderIn(files_, path_);
      // Two jobs may have one id ("none" without --rdzv-id), but no two lives of a job have one number.
      const bool is_earlier_life =
          !run_id.empty() && holder.run_id == run_id && holder.generation < generation;
      if (!is_earlier_life) other_ = holder.process.empty() ? "another process" : holder.process;
      return;
    }
    std::this_thread::sleep_for(kLook);
  }
}

void FolderLock::Retake() {
  if (lock_ != nullptr) return;
  lock_ = TryLock(files_, path_, text_);
  if (lock_ != nullptr) other_.clear();
}

}  // namespace weft
