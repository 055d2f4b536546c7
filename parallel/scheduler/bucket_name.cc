#include "parallel/scheduler/bucket_name.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace weft {
namespace {

std::string OwnerOf(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(0, dot);
}

}  // namespace

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

std::string BucketName(int number, const std::vector<std::string>& paths) {
  const std::string first = OwnerOf(paths.front()), last = OwnerOf(paths.back());
  const std::string where =
      first == last ? absl::StrCat("of ", first) : absl::StrCat("from ", first, " to ", last);
  return absl::StrCat("gradient bucket ", number, ", ", where);
}

}  // namespace weft
