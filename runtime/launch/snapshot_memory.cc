#include "runtime/launch/snapshot_memory.h"

#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/base/error.h"
#include "runtime/launch/launch_environment.h"

namespace weft {

std::optional<SnapshotMemory> ParseSnapshotMemory(const std::map<std::string, std::string>& variables) {
  const auto told = variables.find("WEFT_SNAPSHOT_MEMORY");
  const auto environment = ParseLaunchEnvironment(variables);
  if (told == variables.end() || told->second.empty() || !environment) return std::nullopt;
  SnapshotMemory memory = {
      .paths = {},
      .node = (environment->rank - environment->local_rank) / environment->local_world_size,
      .local_rank = environment->local_rank,
      .local_size = environment->local_world_size};
  const std::pair<std::string, std::string> parts = absl::StrSplit(told->second, absl::MaxSplits(':', 1));
  int64_t number = 0;
  bool is_read = absl::SimpleAtoi(parts.first, &number) && number > 0;
  for (const absl::string_view fd : absl::StrSplit(parts.second, ',')) {
    is_read = is_read && absl::SimpleAtoi(fd, &number) && number >= 0;
    memory.paths.push_back(absl::StrCat("/proc/", parts.first, "/fd/", fd));
  }
  WEFT_REQUIRE(is_read && std::ssize(memory.paths) == int64_t{kSegmentsPerRank} * memory.local_size,
               "environment: WEFT_SNAPSHOT_MEMORY is '", told->second, "', expected PID:FD,FD,... with ",
               kSegmentsPerRank, " open files for each of ", memory.local_size, " local ranks");
  return memory;
}

}  // namespace weft
