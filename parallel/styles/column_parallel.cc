#include "parallel/styles/column_parallel.h"

#include <string>

namespace weft {
namespace {

StylePins Pins(const Style& style, bool /*is_root*/) {
  return {.input = style.input().value_or(Replicate()), .output = style.output()};
}

const RegisterStyle kRegister({
    .name = "ColumnParallel",
    .fields = BorderFields(),
    .reach = StyleReach::kOwn,
    .pins = Pins,
    .split = [](const Style&) { return StyleSplit{.columns = SplitColumns::All()}; },
    .own_dim = [](const ParameterSpec& spec) { return spec.shard_dims.column; },
});

}  // namespace

Style ColumnParallel(absl::string_view axis, const StyleBorders& borders) {
  return Style{.name = "ColumnParallel", .axis = std::string(axis)}
      .With("input", borders.input)
      .With("output", borders.output);
}

}  // namespace weft
