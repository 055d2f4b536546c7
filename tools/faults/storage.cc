#include "tools/faults/storage.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// Files of /proc take one write.
bool WriteTo(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}

[[noreturn]] void Refused(const std::string& what) {
  Throw(absl::StatusCode::kFailedPrecondition,
        "faults of the disk need a file system of their own, and the kernel refuses ", what, ": ",
        strerror(errno));
}

// A mount namespace; of a user namespace where this user may make none.
void EnterMountNamespace() {
  if (unshare(CLONE_NEWNS) == 0) return;
  const std::string user = absl::StrCat("0 ", getuid(), " 1"), group = absl::StrCat("0 ", getgid(), " 1");
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) Refused("namespaces");
  if (!WriteTo("/proc/self/setgroups", "deny") || !WriteTo("/proc/self/uid_map", user) ||
      !WriteTo("/proc/self/gid_map", group)) {
    Refused("to name this user in a user namespace");
  }
}

void MountDisk(const std::string& folder) {
  EnterMountNamespace();
  // Mounts from here on are nobody else's.
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) Refused("a private tree of mounts");
  // A tmpfs without a bound cannot get one later.
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=100%") != 0) Refused("a tmpfs");
}

// Half of what the kernel refuses it refuses behind a first step, which would stay: a child tries.
// Returns what it refuses; "": nothing.
std::string RefusalOf(const std::function<void()>& attempt) {
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0) Refused("a pipe");
  const pid_t child = fork();
  if (child < 0) Refused("a process to try it");
  if (child == 0) {
    std::string refusal;
    try {
      attempt();
    } catch (const std::exception& error) {
      refusal = error.what();
    }
    const ssize_t told = write(ends[1], refusal.data(), refusal.size());
    _exit(told == std::ssize(refusal) ? 0 : 1);
  }
  close(ends[1]);
  std::string refusal;
  char bytes[1024];
  for (ssize_t count = 0; (count = read(ends[0], bytes, sizeof(bytes))) > 0;) {
    refusal.append(bytes, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 || !refusal.empty() ? refusal : "the kernel has ended the process that tries it";
}

}  // namespace

SmallDisk::SmallDisk(const std::string& folder) : folder_(folder) {
  std::filesystem::create_directories(folder);
  const std::string refusal = RefusalOf([&] {
    MountDisk(folder);
    Fill();
    Free();
  });
  if (!refusal.empty()) Throw(absl::StatusCode::kFailedPrecondition, refusal);
  MountDisk(folder);
}

SmallDisk::~SmallDisk() { umount2(folder_.c_str(), MNT_DETACH); }

void SmallDisk::Fill() {
  // What has been written meanwhile may be more than the new size: then once more.
  for (int attempt = 0;; ++attempt) {
    struct statvfs now;
    if (statvfs(folder_.c_str(), &now) != 0) Refused("to look at it");
    const uint64_t used = static_cast<uint64_t>(now.f_blocks - now.f_bfree) * now.f_frsize;
    const std::string size = absl::StrCat("size=", std::max<uint64_t>(used, now.f_frsize));
    if (mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT, size.c_str()) == 0) return;
    if (attempt == 1000) Refused(absl::StrCat("to make '", folder_, "' of ", size));
  }
}

void SmallDisk::Free() {
  if (mount("tmpfs", folder_.c_str(), "tmpfs", MS_REMOUNT, "size=100%") != 0) Refused("to make room again");
}

std::vector<std::string> WholeSteps(const std::string& checkpoints) {
  std::vector<std::string> steps;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_step = absl::StartsWith(name, "step-") && !absl::StrContains(name, ".");
    if (is_step && std::filesystem::exists(entry.path() / "manifest.json", error))
      steps.push_back(entry.path().string());
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

std::vector<std::string> TemporaryNames(const std::string& checkpoints) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::EndsWith(name, ".tmp")) names.push_back(name);
  }
  return names;
}

void FlipBit(const std::string& step, double share) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(step, error)) {
    if (absl::StartsWith(entry.path().filename().string(), "rank-")) files.push_back(entry.path());
  }
  if (files.empty()) Throw(absl::StatusCode::kNotFound, "there is no file of a rank in '", step, "'");
  std::sort(files.begin(), files.end());
  const auto& path = files[static_cast<size_t>(share * static_cast<double>(files.size()))];
  const auto bytes = static_cast<double>(std::filesystem::file_size(path));
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto place = static_cast<std::streamoff>(bytes / 2 + share * bytes / 2);
  file.seekg(place);
  const int byte = file.get();
  file.seekp(place);
  file.put(static_cast<char>(byte ^ 0x10)).flush();
  if (byte < 0 || !file) Throw(absl::StatusCode::kDataLoss, "cannot change a byte of '", path.string(), "'");
}

}  // namespace weft
