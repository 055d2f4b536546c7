#include "parallel/entry_meaning.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {

EntryMeaning MeaningOf(const PlanEntry& entry, const ModelTree& tree) {
  try {
    CheckStyle(entry.style);
  } catch (const Error& error) {
    Throw(error.code(), Where(entry), ": ", error.message());
  }
  EntryMeaning meaning = {.rules = &FindStyle(entry.style.name), .matches = tree.Match(entry.path)};
  WEFT_REQUIRE(!meaning.matches.empty(), Where(entry),
               ": no module or parameter matches this path; the nearest is '", tree.NearestPath(entry.path),
               "'");
  const bool for_modules = meaning.rules->reach == StyleReach::kBorder;
  WEFT_REQUIRE(!for_modules || meaning.matches.parameters.empty(), Where(entry),
               ": this style is for modules; the path names a parameter, '",
               tree.parameter_path(meaning.matches.parameters[0]), "'");
  return meaning;
}

void MergeInto(const Style& style, std::vector<Style>* styles) {
  for (Style& earlier : *styles) {
    if (earlier.name != style.name) continue;
    for (const auto& [field, value] : style.fields) earlier.fields.insert_or_assign(field, value);
    return;
  }
  styles->push_back(style);
}

std::string Where(const PlanEntry& entry) {
  return absl::StrCat("plan entry \"", entry.path, "\": ", entry.style.ToString());
}

void CheckAxis(const PlanEntry& entry, const DeviceMesh& mesh) {
  const std::string& axis = entry.style.axis;
  WEFT_REQUIRE(axis.empty() || mesh.FindAxis(axis) >= 0, Where(entry), ": the mesh (", mesh.ToString(),
               ") has no axis '", axis, "'");
}

}  // namespace weft
