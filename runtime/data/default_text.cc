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

// What setup.sh puts into a tree.
struct Data {
  const char* what;
  const char* path;
  const char* flag;
};
constexpr Data kText = {"text", "data/jargon.txt", "--data=FILE"};
constexpr Data kImages = {"images", "data/fashion-mnist", "--data=FOLDER"};

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

std::string Find(const Data& data, const std::vector<std::string>& start_folders) {
  std::string tree_without;
  const auto look_in = [&](const fs::path& tree) {
    if (!Exists(tree / "WORKSPACE")) return false;
    if (Exists(tree / data.path)) return true;
    if (tree_without.empty()) tree_without = tree.string();
    return false;
  };
  for (const std::string& start : start_folders) {
    std::error_code ignored;
    fs::path folder = fs::weakly_canonical(start, ignored);
    while (!folder.empty()) {
      if (look_in(folder)) return (folder / data.path).string();
      const std::optional<fs::path> tree = SourceTreeOfOutput(folder);
      if (tree && look_in(*tree)) return (*tree / data.path).string();
      if (folder == folder.parent_path()) break;
      folder = folder.parent_path();
    }
  }
  if (tree_without.empty()) {
    Throw(absl::StatusCode::kNotFound, "no ", data.what, " to train on: no Weft source tree with ", data.path,
          " around this program or the current folder; give ", data.flag);
  }
  Throw(absl::StatusCode::kNotFound, "no ", data.what, " to train on: ", tree_without, "/", data.path,
        " is missing; run ./setup.sh there, or give ", data.flag);
}

// The tree that `bazel run` was started in, that of this program, that around the current folder.
std::vector<std::string> StartFolders() {
  std::vector<std::string> folders;
  if (const std::optional<std::string> workspace = BuildWorkspaceDirectory()) folders.push_back(*workspace);
  std::error_code failure;
  const fs::path program = fs::read_symlink("/proc/self/exe", failure);
  if (!failure) folders.push_back(program.parent_path().string());
  const fs::path current = fs::current_path(failure);
  if (!failure) folders.push_back(current.string());
  return folders;
}

}  // namespace

std::string FindDefaultText(const std::vector<std::string>& start_folders) {
  return Find(kText, start_folders);
}
std::string FindDefaultImages(const std::vector<std::string>& start_folders) {
  return Find(kImages, start_folders);
}

std::string DefaultTextPath() { return FindDefaultText(StartFolders()); }
std::string DefaultImagesPath() { return FindDefaultImages(StartFolders()); }

}  // namespace weft
