#include "runtime/data/default_text.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "absl/strings/ascii.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr char kText[] = "data/jargon.txt";

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Bazel writes the path of the source tree into a file of this name at the top of its output folder. The
// links bazel-bin and bazel-out lead there, so a binary's real path lies below it and not below the source
// tree.
std::optional<fs::path> SourceTreeOfOutput(const fs::path& folder) {
  std::ifstream in(folder / "DO_NOT_BUILD_HERE");
  if (!in) return std::nullopt;
  const std::string path{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  return fs::path(std::string(absl::StripAsciiWhitespace(path)));
}

}  // namespace

std::string FindDefaultText(const std::vector<std::string>& start_folders) {
  std::string tree_without_text;
  const auto look_in = [&](const fs::path& tree) {
    if (!Exists(tree / "WORKSPACE")) return false;
    if (Exists(tree / kText)) return true;
    if (tree_without_text.empty()) tree_without_text = tree.string();
    return false;
  };
  for (const std::string& start : start_folders) {
    std::error_code ignored;
    fs::path folder = fs::weakly_canonical(start, ignored);
    while (!folder.empty()) {
      if (look_in(folder)) return (folder / kText).string();
      const std::optional<fs::path> tree = SourceTreeOfOutput(folder);
      if (tree && look_in(*tree)) return (*tree / kText).string();
      if (folder == folder.parent_path()) break;
      folder = folder.parent_path();
    }
  }
  if (tree_without_text.empty()) {
    Throw(absl::StatusCode::kNotFound, "no text to train on: no Weft source tree with ", kText,
          " around this program or the current folder; give --data=FILE");
  }
  Throw(absl::StatusCode::kNotFound, "no text to train on: ", tree_without_text, "/", kText,
        " is missing; run ./setup.sh there, or give --data=FILE");
}

std::string DefaultTextPath() {
  std::vector<std::string> folders;
  if (const std::optional<std::string> workspace = BuildWorkspaceDirectory()) folders.push_back(*workspace);
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  if (!failure) folders.push_back(program.parent_path().string());
  const fs::path current = fs::current_path(failure);
  if (!failure) folders.push_back(current.string());
  return FindDefaultText(folders);
}

}  // namespace weft
