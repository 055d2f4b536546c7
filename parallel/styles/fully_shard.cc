#include "parallel/styles/fully_shard.h"

#include <string>

#include "runtime/tensor/shape.h"

namespace weft {
namespace {

// Elements are counted in a double's range, so that JSON holds them.
constexpr int64_t kMostElements = int64_t{1} << 53;
constexpr int64_t kMostRanks = int64_t{1} << 31;

StylePins Pins(const Style& style, bool is_root) {
  std::optional<Placement> input = style.input();
  if (!input && is_root) input = Shard(0);  // inner units receive what the root was given
  return {.input = input, .output = style.output()};
}

StyleSplit Split(const Style& style) {
  StyleSplit split = {
      .columns = {.at_rest = true, .gradient = true, .state = true},
      .accumulates_unreduced = false,
      .reshard = style.Get<std::string>("reshard") == "never" ? Reshard::kNever : Reshard::kAlways,
      .reshard_to = style.Get<int64_t>("reshard_to").value_or(0),
      .wrap_from = style.Get<int64_t>("wrap_from").value_or(0),
      .wrap = style.Get<std::string>("wrap").value_or(""),
  };
  if (const auto dim = style.Get<int64_t>("dim")) split.dim = static_cast<int>(*dim);
  return split;
}

const RegisterStyle kRegister({
    .name = "FullyShard",
    .fields = BorderFieldsAnd({
        {.name = "reshard", .type = StyleField::Type::kWord, .words = {"always", "never"}},
        {.name = "reshard_to", .type = StyleField::Type::kWholeNumber, .least = 2, .most = kMostRanks},
        {.name = "wrap", .type = StyleField::Type::kWord},
        {.name = "wrap_from", .type = StyleField::Type::kWholeNumber, .least = 1, .most = kMostElements},
        {
            .name = "dim",
            .type = StyleField::Type::kWholeNumber,
            .least = -Shape::kMaxDims,
            .most = Shape::kMaxDims - 1,
        },
    }),
    .reach = StyleReach::kBelow,
    .pins = Pins,
    .split = Split,
});

// Nothing for the default.
std::optional<StyleValue> Word(Reshard reshard) {
  if (reshard == Reshard::kAlways) return std::nullopt;
  return StyleValue(std::string("never"));
}

}  // namespace

Style FullyShard(absl::string_view axis, const FullyShardOptions& options) {
  return Style{.name = "FullyShard", .axis = std::string(axis)}
      .With("input", options.input)
      .With("output", options.output)
      .With("reshard", Word(options.reshard))
      .With("reshard_to", options.reshard_to)
      .With("wrap", options.wrap)
      .With("wrap_from", options.wrap_from)
      .With("dim", options.dim);
}

}  // namespace weft
