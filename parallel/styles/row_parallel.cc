#include "parallel/styles/row_parallel.h"

#include <string>

namespace weft {
namespace {

const RegisterStyle kRegister({
    .name = "RowParallel",
    .fields = BorderFields(),
    .reach = StyleReach::kOwn,
    .pins = SummedOutputPins,
    .split = [](const Style&) { return StyleSplit{.columns = SplitColumns::All()}; },
    .own_dim = [](const ParameterSpec& spec) { return spec.shard_dims.row; },
});

}  // namespace

Style RowParallel(absl::string_view axis, const StyleBorders& borders) {
  return Style{.name = "RowParallel", .axis = std::string(axis)}
      .With("input", borders.input)
      .With("output", borders.output);
}

}  // namespace weft
