#include "dtensor/functions/random_key.h"

#include "absl/strings/str_cat.h"

namespace weft {
namespace {

// No module's path: names have no blanks.
constexpr absl::string_view kOutsideModules = "outside modules";

uint64_t StreamHere(const RankState& state, absl::string_view text, uint64_t call_number) {
  if (state.random_fold() == 0) return StreamOf(text, call_number);
  return StreamOf(absl::StrCat(text, " fold ", state.random_fold()), call_number);
}

}  // namespace

RandomKey NextRandomKey(RankState& state) {
  const absl::string_view path =
      state.is_outside_modules() ? kOutsideModules : absl::string_view(state.PathName(state.path_id()));
  return {
      .seed = state.seed(), .stream = StreamHere(state, path, state.NextCallNumber()), .step = state.step()};
}

RandomKey NamedRandomKey(const RankState& state, absl::string_view name) {
  return {.seed = state.seed(), .stream = StreamHere(state, name, /*call_number=*/0), .step = state.step()};
}

}  // namespace weft
