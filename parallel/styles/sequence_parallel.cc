#include "parallel/styles/sequence_parallel.h"

#include <string>

namespace weft {
namespace {

StylePins Pins(const Style& style, bool /*is_root*/) {
  return {.input = style.input().value_or(Shard(1)), .output = style.output()};
}

const RegisterStyle kRegister({
    .name = "SequenceParallel",
    .fields = BorderFields(),
    .reach = StyleReach::kBorder,
    .pins = Pins,
});

}  // namespace

Style SequenceParallel(absl::string_view axis, const StyleBorders& borders) {
  return Style{.name = "SequenceParallel", .axis = std::string(axis)}
      .With("input", borders.input)
      .With("output", borders.output);
}

}  // namespace weft
