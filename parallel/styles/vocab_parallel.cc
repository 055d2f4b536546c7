#include "parallel/styles/vocab_parallel.h"

#include <string>

namespace weft {
namespace {

const RegisterStyle kRegister({
    .name = "VocabParallel",
    .fields = BorderFields(),
    .reach = StyleReach::kOwn,
    .pins = SummedOutputPins,
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
