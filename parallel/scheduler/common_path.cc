#include "parallel/scheduler/common_path.h"

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace weft {

std::string CommonPath(const std::vector<std::string>& paths) {
  std::vector<std::string> common = absl::StrSplit(paths[0], '.');
  common.pop_back();  // the parameter's own name
  for (const std::string& path : paths) {
    const std::vector<std::string> parts = absl::StrSplit(path, '.');
    size_t same = 0;
    while (same < common.size() && same + 1 < parts.size() && common[same] == parts[same]) ++same;
    common.resize(same);
  }
  return absl::StrJoin(common, ".");
}

}  // namespace weft
