#include "parallel/styles/prepare.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int kMostTensors = 4;

std::string FieldOf(int tensor) { return absl::StrCat("tensor_", tensor); }

std::vector<StyleField> Fields() {
  std::vector<StyleField> fields;
  for (int i = 0; i < kMostTensors; ++i) {
    fields.push_back({.name = FieldOf(i), .type = StyleField::Type::kPlacement});
  }
  return fields;
}

std::vector<std::optional<Placement>> Placements(const Style& style) {
  std::vector<std::optional<Placement>> placements;
  for (int i = 0; i < kMostTensors; ++i) placements.push_back(style.Get<Placement>(FieldOf(i)));
  return placements;
}

void Check(const Style& style) {
  WEFT_REQUIRE(!style.fields.empty(), style.name, ": expected a placement of one tensor at least");
}

const RegisterStyle kRegisterInput({
    .name = "PrepareInput",
    .fields = Fields(),
    .reach = StyleReach::kBorder,
    .pins = [](const Style& style, bool /*is_root*/) { return StylePins{.inputs = Placements(style)}; },
    .check = Check,
});
const RegisterStyle kRegisterOutput({
    .name = "PrepareOutput",
    .fields = Fields(),
    .reach = StyleReach::kBorder,
    .pins = [](const Style& style, bool /*is_root*/) { return StylePins{.outputs = Placements(style)}; },
    .check = Check,
});

Style Prepare(const char* name, absl::string_view axis,
              const std::vector<std::optional<Placement>>& placements) {
  WEFT_REQUIRE(placements.size() <= kMostTensors, name, ": expected at most ", kMostTensors,
               " placements, got ", placements.size());
  Style style = {.name = name, .axis = std::string(axis)};
  for (size_t i = 0; i < placements.size(); ++i) {
    if (placements[i]) style = style.With(FieldOf(static_cast<int>(i)), StyleValue(*placements[i]));
  }
  return style;
}

}  // namespace

Style PrepareInput(absl::string_view axis, const std::vector<std::optional<Placement>>& placements) {
  return Prepare("PrepareInput", axis, placements);
}

Style PrepareOutput(absl::string_view axis, const std::vector<std::optional<Placement>>& placements) {
  return Prepare("PrepareOutput", axis, placements);
}

}  // namespace weft
