#include "parallel/compression/parameter_communication.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_join.h"
#include "parallel/styles/communication.h"
#include "runtime/base/error.h"

namespace weft {

ParameterCommunication CommunicationOf(const std::string& path, const std::vector<Style>& styles,
                                       const std::vector<int>& stages, const std::vector<int>& stage_ranks,
                                       const DeviceMesh& mesh) {
  ParameterCommunication communication;
  const auto own =
      std::find_if(styles.begin(), styles.end(), [](const Style& s) { return s.name == "Communication"; });
  if (own == styles.end()) return communication;
  communication.method = MethodOf(*own);
  if (communication.method.is_none()) return communication;
  for (const Style& style : styles) {
    const StyleRules& rules = FindStyle(style.name);
    if (!rules.has_axis || rules.reach != StyleReach::kBelow) continue;
    communication.axes.push_back(mesh.FindAxis(style.axis));
  }
  std::sort(communication.axes.begin(), communication.axes.end());
  communication.axes.erase(std::unique(communication.axes.begin(), communication.axes.end()),
                           communication.axes.end());
  std::set<int> holders;
  for (const int stage : stages) holders.insert(stage_ranks[stage]);
  WEFT_REQUIRE(holders.size() <= 1 || !communication.compresses(), own->ToString(), " on '", path,
               "': stages on ranks ", absl::StrJoin(holders, " and "),
               " of the pipeline have it in common, and each would keep a residual of its own; expected "
               "Communication(\"none\") on it");
  return communication;
}

}  // namespace weft
