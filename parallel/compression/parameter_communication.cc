#include "parallel/compression/parameter_communication.h"

#include <algorithm>

#include "parallel/styles/communication.h"
#include "runtime/base/error.h"

namespace weft {

ParameterCommunication CommunicationOf(const std::string& path, const std::vector<Style>& styles,
                                       const ParameterLayouts& layouts, const std::vector<int>& stages,
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
    const int axis = mesh.FindAxis(style.axis);
    WEFT_REQUIRE(
        !layouts.of_gradient().IsShard(axis), own->ToString(), " on '", path,
        "': its gradient is reduce-scattered over axis '", style.axis, "' by ", style.ToString(),
        "; expected one that is summed whole: DataParallel without shard_state and shard_gradient, or "
        "Communication(\"none\")");
    communication.axes.push_back(axis);
  }
  std::sort(communication.axes.begin(), communication.axes.end());
  communication.axes.erase(std::unique(communication.axes.begin(), communication.axes.end()),
                           communication.axes.end());
  WEFT_REQUIRE(stages.empty() || !communication.compresses(), own->ToString(), " on '", path,
               "': gradients of a pipeline's stages are summed exactly; expected none");
  return communication;
}

}  // namespace weft
