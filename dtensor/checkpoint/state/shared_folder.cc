#include "dtensor/checkpoint/state/shared_folder.h"

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/checkpoint/folder/step_folder.h"
#include "runtime/base/error.h"
#include "runtime/base/host_name.h"
#include "runtime/base/random_id.h"

namespace weft {
namespace {

bool Holds(Files& files, const std::string& path, const std::string& nonce) {
  try {
    return ReadText(files, path, /*max_bytes=*/4096) == nonce;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

void CheckFolderIsShared(Agreement& agreement, Files& files, const std::string& folder,
                         std::chrono::milliseconds patience) {
  const std::string nonce = RandomId();
  const bool is_first = agreement.rank() == 0;
  const auto write = [&] {
    if (!is_first) return std::string();
    MakeFolders(files, folder);
    WriteText(files, JoinPath(folder, absl::StrCat(kNoncePrefix, nonce)), nonce);
    files.SyncFolder(folder);
    return absl::StrCat(nonce, "\n", HostName());
  };
  const std::vector<std::string> first = absl::StrSplit(
      agreement.Agree(
          {.part = write, .conclude = [](const std::vector<std::string>& reports) { return reports[0]; }}),
      '\n');
  const std::string path = JoinPath(folder, absl::StrCat(kNoncePrefix, first[0]));
  const auto look = [&] {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    while (!Holds(files, path, first[0])) {
      if (std::chrono::steady_clock::now() >= deadline) return HostName();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return std::string();
  };
  const auto remove = [&] {
    try {
      files.Remove(path);
    } catch (const Error& error) {
      // On a file system without locks another job that begins now may have removed it.
      if (error.code() != absl::StatusCode::kNotFound) throw;
    }
  };
  const auto conclude = [&](const std::vector<std::string>& hosts) {
    std::vector<std::string> blind;
    for (size_t rank = 0; rank < hosts.size(); ++rank) {
      if (!hosts[rank].empty()) blind.push_back(absl::StrCat("rank ", rank, " on ", hosts[rank]));
    }
    if (!blind.empty()) {
      Throw(absl::StatusCode::kFailedPrecondition, "checkpoint folder '", folder, "': not seen as rank 0 on ",
            first[1], " sees it: by ", absl::StrJoin(blind, ", "),
            "; expected a folder that all machines share");
    }
    remove();
    return std::string();
  };
  agreement.Agree({.part = look, .conclude = conclude, .undo = remove});
}

}  // namespace weft
