#include "dtensor/functions/random_key.h"

#include "absl/strings/string_view.h"

namespace weft {

// No module's path: names have no blanks.
constexpr absl::string_view kOutsideModules = "outside modules";

RandomKey NextRandomKey(RankState& state) {
  const absl::string_view path =
      state.is_outside_modules() ? kOutsideModules : absl::string_view(state.PathName(state.path_id()));
  return {.seed = state.seed(), .stream = StreamOf(path, state.NextCallNumber()), .step = state.step()};
}

}  // namespace weft
