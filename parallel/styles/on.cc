#include "parallel/styles/on.h"

#include <limits>
#include <optional>
#include <string>

#include "runtime/base/error.h"

namespace weft {
namespace {

constexpr int64_t kMostRanks = std::numeric_limits<int32_t>::max();

const RegisterStyle kRegister({
    .name = "On",
    .fields =
        {
            {.name = "first", .type = StyleField::Type::kWholeNumber, .least = 0, .most = kMostRanks},
            {.name = "count", .type = StyleField::Type::kWholeNumber, .least = 1, .most = kMostRanks},
            {.name = "mesh", .type = StyleField::Type::kWord},
        },
    .reach = StyleReach::kBorder,
    .check = [](const Style& style) { OnRangeOf(style); },
    .makes_parts = true,
});

}  // namespace

Style On(absl::string_view axis, int64_t first, int64_t count, absl::string_view mesh) {
  std::optional<StyleValue> of_mesh;
  if (!mesh.empty()) of_mesh = StyleValue(std::string(mesh));
  return Style{.name = "On", .axis = std::string(axis)}
      .With("first", StyleValue(first))
      .With("count", StyleValue(count))
      .With("mesh", of_mesh);
}

OnRange OnRangeOf(const Style& style) {
  const std::optional<int64_t> first = style.Get<int64_t>("first"), count = style.Get<int64_t>("count");
  WEFT_REQUIRE(first && count, "On: expected fields first and count, got ", style.ToString());
  OnRange range = {.first = *first, .count = *count};
  const std::optional<std::string> text = style.Get<std::string>("mesh");
  if (!text) {
    range.axes = {{style.axis, *count}};
    return range;
  }
  const DeviceMesh mesh = DeviceMesh::Parse(*text);
  WEFT_REQUIRE(mesh.num_ranks() == *count, "On: mesh (", mesh.ToString(), ") has ", mesh.num_ranks(),
               " ranks, expected count, ", *count);
  range.axes = mesh.axes();
  return range;
}

}  // namespace weft
