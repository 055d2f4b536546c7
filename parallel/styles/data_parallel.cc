#include "parallel/styles/data_parallel.h"

#include <string>

namespace weft {
namespace {

StylePins Pins(const Style& style, bool /*is_root*/) {
  return {.input = style.input().value_or(Shard(0)), .output = style.output()};
}

StyleSplit Split(const Style& style) {
  const bool reduces_each = style.Get<bool>("shard_gradient").value_or(false);
  const bool split = reduces_each || style.Get<bool>("shard_state").value_or(false);
  return {
      .columns = {.gradient = split, .state = split},
      .accumulates_unreduced = !reduces_each,
  };
}

const RegisterStyle kRegister({
    .name = "DataParallel",
    .fields = BorderFieldsAnd({
        {.name = "shard_state", .type = StyleField::Type::kFlag},
        {.name = "shard_gradient", .type = StyleField::Type::kFlag},
    }),
    .reach = StyleReach::kBelow,
    .pins = Pins,
    .split = Split,
});

std::optional<StyleValue> IfSet(bool flag) {
  if (!flag) return std::nullopt;
  return StyleValue(true);
}

}  // namespace

Style DataParallel(absl::string_view axis, const DataParallelOptions& options) {
  return Style{.name = "DataParallel", .axis = std::string(axis)}
      .With("input", options.input)
      .With("output", options.output)
      .With("shard_state", IfSet(options.shard_state))
      .With("shard_gradient", IfSet(options.shard_gradient));
}

}  // namespace weft
