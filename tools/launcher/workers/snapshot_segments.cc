#include "tools/launcher/workers/snapshot_segments.h"

#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/launch/snapshot_memory.h"

namespace weft {
namespace {

// A name of memfd_create has at most 249 bytes.
constexpr size_t kLongestId = 200;

}  // namespace

SnapshotSegments::SnapshotSegments(const std::string& run_id, int num_workers) {
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
