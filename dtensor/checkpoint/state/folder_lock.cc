#include "dtensor/checkpoint/state/folder_lock.h"

#include <unistd.h>

#include <thread>
#include <utility>

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

// The job's name and its process.
std::pair<std::string, std::string> HolderIn(Files& files, const std::string& path) {
  try {
    return absl::StrSplit(ReadText(files, path, /*max_bytes=*/4096), absl::MaxSplits('\n', 1));
  } catch (const Error&) {
    return {"", ""};
  }
}

}  // namespace

FolderLock::FolderLock(Files& files, const std::string& folder, const std::string& run_id,
                       std::chrono::milliseconds patience) {
  const std::string path = JoinPath(folder, kLockName);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const std::string text = absl::StrCat(run_id, "\n", ThisProcess());
  while ((lock_ = TryLock(files, path, text)) == nullptr) {
    const auto [job, process] = HolderIn(files, path);
    if (!run_id.empty() && job == run_id) return;
    if (std::chrono::steady_clock::now() >= deadline) {
      other_ = process.empty() ? "another process" : process;
      return;
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace weft
