#include "tools/launcher/processes/descendants.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace weft {
namespace {

// The parent of a process that lives; nullopt for one that is gone, or a zombie.
std::optional<pid_t> LivingParent(const std::filesystem::path& folder) {
  std::ifstream file(folder / "stat");
  std::string text;
  if (!std::getline(file, text, '\0')) return std::nullopt;
  // PID (NAME) STATE PARENT ...: the name may hold anything, parentheses and blanks too.
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(text).substr(name_end + 2), absl::MaxSplits(' ', 2));
  int32_t parent = 0;
  if (fields.size() < 3 || fields[0] == "Z" || fields[0] == "X" || !absl::SimpleAtoi(fields[1], &parent)) {
    return std::nullopt;
  }
  return parent;
}

void ReapAll() {
  while (waitpid(-1, nullptr, WNOHANG) > 0) {
  }
}

}  // namespace

void AdoptOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

std::vector<pid_t> DescendantsOf(pid_t root) {
  std::multimap<pid_t, pid_t> children;
  std::error_code error;  // a folder may go away while it is read
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    int32_t pid = 0;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &pid)) continue;
    if (const std::optional<pid_t> parent = LivingParent(entry->path())) children.emplace(*parent, pid);
  }
  std::vector<pid_t> found = {root};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [begin, end] = children.equal_range(found[i]);
    for (auto child = begin; child != end; ++child) found.push_back(child->second);
  }
  found.erase(found.begin());
  return found;
}

bool KillDescendants(std::chrono::milliseconds bound) {
  const auto deadline = std::chrono::steady_clock::now() + bound;
  for (;;) {
    const std::vector<pid_t> alive = DescendantsOf(getpid());
    for (pid_t pid : alive) kill(pid, SIGKILL);
    ReapAll();
    if (alive.empty()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace weft
