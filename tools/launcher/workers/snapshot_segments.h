// Memory that outlives the workers.

#ifndef WEFT_TOOLS_LAUNCHER_WORKERS_SNAPSHOT_SEGMENTS_H_
#define WEFT_TOOLS_LAUNCHER_WORKERS_SNAPSHOT_SEGMENTS_H_

#include <string>
#include <vector>

#include "tools/launcher/processes/file_descriptor.h"

namespace weft {

// Segments of shared memory of this process, without names in any folder: workers open them by this process's files, and
// the system frees them when the process ends, however it does. Empty, and of no cost, until a worker writes there.
class SnapshotSegments {
 public:
  // For as many workers. `run_id`: shown in /proc/PID/fd. Where the system has no room for so many files
  // beside what the workers need, there are none.
  SnapshotSegments(const std::string& run_id, int num_workers);

  // What WEFT_SNAPSHOT_MEMORY tells the workers (runtime/launch/snapshot_memory.h); "" if there are none.
  std::string ToVariable() const;

 private:
  std::vector<FileDescriptor> files_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_WORKERS_SNAPSHOT_SEGMENTS_H_
