// Where a node's agent keeps memory for snapshots, as it tells its workers.

#ifndef WEFT_RUNTIME_LAUNCH_SNAPSHOT_MEMORY_H_
#define WEFT_RUNTIME_LAUNCH_SNAPSHOT_MEMORY_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft {

// How many segments a node has per local rank: two for snapshots of a rank, two for copies of another node's.
inline constexpr int kSegmentsPerRank = 4;

// The segments of a node, and which of its ranks this process is. They belong to weft_run's agent, have no name in any
// folder, are empty at first, outlive the workers and go with the agent.
struct SnapshotMemory {
  std::vector<std::string>
      paths;     // files to open: kSegmentsPerRank per local rank, those of local rank 0 first
  int node = 0;  // the node's number in this generation
  int local_rank = 0;
  int local_size = 1;

  bool operator==(const SnapshotMemory&) const = default;
};

// Reads `variables` (LauncherVariables): WEFT_SNAPSHOT_MEMORY is "PID:FD,FD,...", open files of the agent. Nothing without it.
// Errors: InvalidArgument naming the variable, what it holds and what is expected; as ParseLaunchEnvironment.
std::optional<SnapshotMemory> ParseSnapshotMemory(const std::map<std::string, std::string>& variables);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_SNAPSHOT_MEMORY_H_
