#include "tools/launcher/workers/snapshot_segments.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/launch/snapshot_memory.h"

namespace weft {
namespace {

// A name of memfd_create has at most 249 bytes.
constexpr size_t kLongestId = 200;

// What else this process has open: for each worker two pipes, two logs and its connection to the store; and the store's own
// and what comes and goes.
constexpr int kOtherFilesPerWorker = 5;
constexpr int kOtherFiles = 64;

// Whether this process may have so many files open.
bool MayHaveOpen(int num_files) {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) != 0 || static_cast<rlim_t>(num_files) <= limit.rlim_cur;
}

}  // namespace

SnapshotSegments::SnapshotSegments(const std::string& run_id, int num_workers) {
  if (!MayHaveOpen(num_workers * (kSegmentsPerRank + kOtherFilesPerWorker) + kOtherFiles)) return;
  for (int i = 0; i < num_workers * kSegmentsPerRank; ++i) {
    const std::string name = absl::StrCat("weft.", run_id.substr(0, kLongestId), ".", i);
    files_.emplace_back(memfd_create(name.c_str(), MFD_CLOEXEC));
    if (files_.back().open()) continue;
    files_.clear();
    return;
  }
}

std::string SnapshotSegments::ToVariable() const {
  if (files_.empty()) return "";
  return absl::StrCat(getpid(), ":",
                      absl::StrJoin(files_, ",", [](std::string* out, const FileDescriptor& file) {
                        absl::StrAppend(out, file.get());
                      }));
}

}  // namespace weft
