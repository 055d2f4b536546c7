#include "tools/faults/leftovers.h"

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/faults/processes.h"

namespace weft {
namespace {

// Of the folder of a step, what is shorter or longer than it was written.
std::vector<std::string> TornFilesOf(const std::filesystem::path& step) {
  std::ifstream text(step / "manifest.json");
  const nlohmann::json manifest = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || !manifest.contains("files")) {
    return {absl::StrCat((step / "manifest.json").string(), ", which is torn")};
  }
  std::vector<std::string> torn;
  for (const auto& [name, file] : manifest["files"].items()) {
    std::error_code error;
    const auto size = std::filesystem::file_size(step / name, error);
    if (error || size != file.value("bytes", std::uintmax_t{0})) {
      torn.push_back(absl::StrCat((step / name).string(), ", which is torn"));
    }
  }
  return torn;
}

// A file in shared memory of this user that no process uses. That of a job beside this one may go while one looks: whether
// it is there is asked last.
bool IsForgotten(const std::string& path) {
  if (IsInUse(path)) return false;
  struct stat file;
  return lstat(path.c_str(), &file) == 0 && file.st_uid == geteuid();
}

}  // namespace

std::vector<std::string> LeftBy(const JobPlaces& places) {
  std::vector<std::string> left;
  for (const std::string& run_id : places.run_ids) {
    AwaitGone(ProcessesOf(run_id), std::chrono::seconds(1));
    for (const pid_t pid : ProcessesOf(run_id)) left.push_back(absl::StrCat("process ", pid));
  }
  for (const std::string& name : SharedMemoryNames()) {
    const std::string path = absl::StrCat("/dev/shm/", name);
    if (!absl::c_linear_search(places.shared_memory_before, name) && IsForgotten(path)) left.push_back(path);
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(places.folder, error)) {
    if (absl::StrContains(entry.path().filename().string(), ".tmp")) left.push_back(entry.path().string());
  }
  for (const auto& entry : std::filesystem::directory_iterator(places.temporary, error)) {
    left.push_back(entry.path().string());
  }
  for (const auto& entry : std::filesystem::directory_iterator(places.checkpoints, error)) {
    const bool is_step = std::filesystem::exists(entry.path() / "manifest.json") &&
                         !absl::EndsWith(entry.path().string(), ".tmp");
    const bool stays = entry.path().filename() == "latest" || entry.path().filename() == ".lock";
    if (!is_step && !stays) left.push_back(entry.path().string());
    if (is_step) absl::c_copy(TornFilesOf(entry.path()), std::back_inserter(left));
  }
  return left;
}

std::vector<std::string> LeftByStore(StoreProcess& store) {
  std::vector<std::string> left;
  if (!store.End()) left.emplace_back("a store that did not end well when it was told to");
  for (const pid_t pid : store.Processes()) left.push_back(absl::StrCat("process ", pid, ", of the store"));
  absl::c_move(store.FilesTooMany(), std::back_inserter(left));
  return left;
}

}  // namespace weft
