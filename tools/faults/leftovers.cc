#include "tools/faults/leftovers.h"

#include <sys/types.h>

#include <chrono>
#include <filesystem>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/faults/processes.h"

namespace weft {

std::vector<std::string> LeftBy(const JobPlaces& places) {
  std::vector<std::string> left;
  for (const std::string& run_id : places.run_ids) {
    AwaitGone(ProcessesOf(run_id), std::chrono::seconds(1));
    for (const pid_t pid : ProcessesOf(run_id)) left.push_back(absl::StrCat("process ", pid));
  }
  for (const std::string& name : SharedMemoryNames()) {
    if (!absl::c_linear_search(places.shared_memory_before, name)) {
      left.push_back(absl::StrCat("/dev/shm/", name));
    }
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(places.folder, error)) {
    if (absl::StrContains(entry.path().filename().string(), ".tmp")) left.push_back(entry.path().string());
  }
  for (const auto& entry : std::filesystem::directory_iterator(places.checkpoints, error)) {
    const bool is_step = std::filesystem::exists(entry.path() / "manifest.json") &&
                         !absl::EndsWith(entry.path().string(), ".tmp");
    const bool stays = entry.path().filename() == "latest" || entry.path().filename() == ".lock";
    if (!is_step && !stays) left.push_back(entry.path().string());
  }
  return left;
}

}  // namespace weft
