#include "tools/faults/processes.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <sstream>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace weft {
namespace {

// Of a process that ends meanwhile: nothing, or a part. An iterator over the file would throw then.
std::string ContentOf(const std::string& path) {
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

// State and parent, of one that is there.
struct Stat {
  char state = 'X';
  pid_t parent = 0;
};

std::optional<Stat> StatOf(pid_t pid) {
  const std::string text = ContentOf(absl::StrCat("/proc/", pid, "/stat"));
  // PID (NAME) STATE PARENT ...: the name may hold anything.
  const size_t name_end = text.rfind(") ");
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 2), absl::MaxSplits(' ', 2));
  Stat stat;
  if (fields.size() < 3 || fields[0].empty() || !absl::SimpleAtoi(fields[1], &stat.parent))
    return std::nullopt;
  stat.state = fields[0][0];
  return stat;
}

void ForEachProcess(const std::function<void(pid_t)>& visit) {
  std::error_code error;  // a folder may go away while it is read
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    pid_t pid = 0;
    if (absl::SimpleAtoi(entry->path().filename().string(), &pid) && IsAlive(pid)) visit(pid);
  }
}

// The variables of a process of that job; none of any other.
std::vector<std::string> VariablesIfOf(const std::string& run_id, pid_t pid) {
  std::vector<std::string> variables =
      absl::StrSplit(ContentOf(absl::StrCat("/proc/", pid, "/environ")), '\0');
  const std::string own = absl::StrCat("TORCHELASTIC_RUN_ID=", run_id);
  const bool is_of_it = absl::c_any_of(variables, [&](absl::string_view variable) {
    return absl::ConsumePrefix(&variable, own) && (variable.empty() || variable[0] == '.');
  });
  if (!is_of_it) variables.clear();
  return variables;
}

bool WasGiven(pid_t pid, const std::string& word) {
  const std::vector<std::string> words =
      absl::StrSplit(ContentOf(absl::StrCat("/proc/", pid, "/cmdline")), '\0');
  return absl::c_linear_search(words, word);
}

}  // namespace

bool IsAlive(pid_t pid) {
  const std::optional<Stat> stat = StatOf(pid);
  return stat && stat->state != 'Z' && stat->state != 'X';
}

std::map<int, pid_t> RanksOf(const std::string& run_id) {
  std::map<int, pid_t> ranks;
  ForEachProcess([&](pid_t pid) {
    for (const std::string& variable : VariablesIfOf(run_id, pid)) {
      int rank = 0;
      if (!absl::StartsWith(variable, "RANK=") || !absl::SimpleAtoi(variable.substr(5), &rank)) continue;
      // What a rank has started has its variables too, and a higher number as a rule.
      const auto [it, is_new] = ranks.emplace(rank, pid);
      if (!is_new && pid < it->second) it->second = pid;
    }
  });
  return ranks;
}

std::vector<pid_t> ProcessesOf(const std::string& run_id) {
  std::vector<pid_t> processes;
  ForEachProcess([&](pid_t pid) {
    const bool is_launcher = WasGiven(pid, absl::StrCat("--rdzv-id=", run_id));
    if (is_launcher || !VariablesIfOf(run_id, pid).empty()) processes.push_back(pid);
  });
  return processes;
}

std::vector<pid_t> ProcessesGiven(const std::string& word) {
  std::vector<pid_t> processes;
  ForEachProcess([&](pid_t pid) {
    if (WasGiven(pid, word)) processes.push_back(pid);
  });
  return processes;
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  ForEachProcess([&](pid_t pid) {
    const std::optional<Stat> stat = StatOf(pid);
    if (stat && stat->parent == parent) children.push_back(pid);
  });
  return children;
}

std::vector<pid_t> FamilyOf(pid_t ancestor) {
  std::vector<pid_t> family = {ancestor};
  for (size_t i = 0; i < family.size(); ++i) absl::c_copy(ChildrenOf(family[i]), std::back_inserter(family));
  return family;
}

bool AwaitGone(const std::vector<pid_t>& processes, std::chrono::milliseconds bound) {
  const auto deadline = std::chrono::steady_clock::now() + bound;
  while (absl::c_any_of(processes, IsAlive)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::vector<std::string> SharedMemoryNames() {
  std::vector<std::string> names;
  const std::filesystem::path root = "/dev/shm";
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(
      root, std::filesystem::directory_options::skip_permission_denied, error);
  for (; !error && entry != std::filesystem::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    if (entry->is_directory(gone)) continue;
    names.push_back(entry->path().lexically_relative(root).string());
  }
  return names;
}

bool IsInUse(const std::string& path) {
  bool is_in_use = false;
  ForEachProcess([&](pid_t pid) {
    const std::string process = absl::StrCat("/proc/", pid);
    is_in_use = is_in_use || absl::StrContains(ContentOf(process + "/maps"), absl::StrCat(" ", path, "\n"));
    std::error_code error;
    std::filesystem::directory_iterator entry(process + "/fd", error);
    for (; !error && !is_in_use && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      std::error_code closed;
      is_in_use = std::filesystem::read_symlink(entry->path(), closed) == path;
    }
  });
  return is_in_use;
}

}  // namespace weft
