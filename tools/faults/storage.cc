#include "tools/faults/storage.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"
#include "tools/faults/namespaces.h"

namespace weft {
namespace {

constexpr char kNeed[] = "faults of the disk need a file system of their own";

[[noreturn]] void Refused(const std::string& what) { ThrowRefused(kNeed, what); }

void MountDisk(const std::string& folder) {
  EnterNamespaces(CLONE_NEWNS, kNeed);
  MakeMountsPrivate(kNeed);
  // A tmpfs without a bound cannot get one later.
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=100%") != 0) Refused("a tmpfs");
}

}  // namespace

SmallDisk::SmallDisk(const std::string& folder) : folder_(folder) {
  std::filesystem::create_directories(folder);
  RequireAllowed(kNeed, [&] {
    MountDisk(folder);
    Fill();
    Free();
  });
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

std::filesystem::file_time_type LastChangeOf(const std::string& folder) {
  std::error_code error;
  return std::filesystem::last_write_time(folder, error);
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
