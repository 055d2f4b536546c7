#include "parallel/styles/vocab_parallel.h"

#include <string>

namespace weft {
namespace {

StylePins Pins(const Style& style, bool /*is_root*/) {
  // Every rank needs the whole gradient of the sum that it added a term to.
  return {
      .input = style.input(),
      .output = style.output().value_or(Replicate()),
      .output_gradient = Replicate(),
  };
}

const RegisterStyle kRegister({
    .name = "VocabParallel",
    .fields = BorderFields(),
    .reach = StyleReach::kOwn,
    .pins = Pins,
    .split = [](const Style&) { return StyleSplit{.columns = SplitColumns::All()}; },
    .own_dim = [](const ParameterSpec& spec) { return spec.shard_dims.vocabulary; },
});

}  // namespace

Style VocabParallel(absl::string_view axis, const StyleBorders& borders) {
  return Style{.name = "VocabParallel", .axis = std::string(axis)}
      .With("input", borders.input)
      .With("output", borders.output);
}

}  // namespace weft
