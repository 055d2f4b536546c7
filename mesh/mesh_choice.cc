#include "mesh/mesh_choice.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

// "dp = auto" is name "dp", and true.
std::pair<std::string, bool> ReadEntry(absl::string_view entry) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(entry, absl::MaxSplits('=', 1));
  return {std::string(absl::StripAsciiWhitespace(parts.first)),
          absl::StripAsciiWhitespace(parts.second) == "auto"};
}

std::string WithSize(absl::string_view text, int64_t size) {
  std::vector<std::string> entries = absl::StrSplit(text, ',');
  for (std::string& entry : entries) {
    const auto [name, is_auto] = ReadEntry(entry);
    if (is_auto) entry = absl::StrCat(name, "=", size);
  }
  return absl::StrJoin(entries, ",");
}

int CountAuto(absl::string_view text) {
  int count = 0;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) count += ReadEntry(entry).second ? 1 : 0;
  return count;
}

}  // namespace

bool IsAutoMesh(absl::string_view text) { return CountAuto(text) > 0; }

DeviceMesh ChooseMesh(absl::string_view text, int64_t world_size) {
  const int num_auto = CountAuto(text);
  if (num_auto == 0) return DeviceMesh::Parse(text);
  WEFT_REQUIRE(num_auto == 1, "cannot read mesh \"", text, "\": one axis at most is auto, got ", num_auto);
  const DeviceMesh smallest = DeviceMesh::Parse(WithSize(text, 1));
  WEFT_REQUIRE(smallest.num_ranks() <= world_size, "mesh \"", text, "\" needs ", smallest.num_ranks(),
               " ranks at least; the world has ", world_size);
  return DeviceMesh::Parse(WithSize(text, world_size / smallest.num_ranks()));
}

DeviceMesh ChooseMeshAmong(absl::string_view choices, int64_t world_size) {
  std::optional<DeviceMesh> chosen;
  for (const absl::string_view text : absl::StrSplit(choices, ';')) {
    WEFT_REQUIRE(!absl::StripAsciiWhitespace(text).empty(), "\"", choices,
                 "\": expected meshes separated by ';', got an empty one");
    DeviceMesh mesh = DeviceMesh::Parse(text);
    const bool fits = mesh.num_ranks() <= world_size;
    if (fits && (!chosen || mesh.num_ranks() > chosen->num_ranks())) chosen = std::move(mesh);
  }
  WEFT_REQUIRE(chosen.has_value(), "none of the meshes \"", choices, "\" fits a world of ", world_size,
               " ranks");
  return *std::move(chosen);
}

}  // namespace weft
