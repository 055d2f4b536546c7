#include "parallel/pipeline/action_names.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace weft {

const ActionNames::Name& ActionNames::Of(const PipelineAction& action) {
  const auto [found, is_new] = names_.try_emplace({action.kind, action.stage, action.microbatch});
  if (is_new) {
    std::string text = absl::StrCat(ActionKindName(action.kind), " of stage ", action.stage);
    if (HasMicrobatch(action.kind)) absl::StrAppend(&text, ", microbatch ", action.microbatch);
    found->second = {.activity = recorder_.KeepActivity(text),
                     .path_id = state_.PathId(absl::StrCat("stage ", action.stage))};
  }
  return found->second;
}

}  // namespace weft
