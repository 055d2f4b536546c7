#include "dtensor/checkpoint/state/state_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "dtensor/checkpoint/folder/manifest.h"
#include "runtime/base/error.h"

namespace weft {

std::vector<LocalStateTensor> TensorsOf(const State& state, const std::vector<std::string>& parts) {
  std::vector<LocalStateTensor> tensors;
  std::set<std::string> known, wanted(parts.begin(), parts.end());
  for (const auto& [part_name, part] : state.parts()) {
    if (!parts.empty() && wanted.erase(part_name) == 0) continue;
    for (StateTensor& tensor : part->Tensors()) {
      WEFT_REQUIRE(known.insert(tensor.name).second, "state: tensor '", tensor.name, "' of part '", part_name,
                   "' stands twice");
      WEFT_REQUIRE(tensor.tensor.defined() && !tensor.tensor.layout().HasPartial(), "state: tensor '",
                   tensor.name, "' is ", tensor.tensor.defined() ? tensor.tensor.ToString() : "undefined",
                   "; expected a layout without Partial");
      tensors.push_back({std::move(tensor), part->is_exact()});
    }
  }
  WEFT_REQUIRE(wanted.empty(), "state: no part '", absl::StrJoin(wanted, "', '"), "'");
  return tensors;
}

TensorPlace PlaceOf(const DTensor& tensor) {
  return {.type = tensor.type(), .mesh = tensor.context()->mesh(), .layout = tensor.layout()};
}

StateTable GatherStateTable(Agreement& agreement, const std::vector<LocalStateTensor>& tensors) {
  // A manifest of the tensors that this rank tells of says all that has to be said of them.
  Manifest mine;
  mine.world = agreement.size();
  for (const LocalStateTensor& local : tensors) {
    const TensorPlace place = PlaceOf(local.tensor.tensor);
    if (place.mesh.ranks()[0] != agreement.rank()) continue;
    mine.tensors[local.tensor.name] = place;
    if (!local.is_exact) mine.texts[local.tensor.name] = "";
  }
  StateTable table;
  for (const std::string& text : agreement.AllGather(FormatManifest(mine))) {
    const Manifest manifest = ParseManifest("state", text);
    for (const auto& [name, place] : manifest.tensors) {
      const auto added = table.emplace(name, StateTableEntry{place, manifest.texts.count(name) == 0});
      const TensorType& type = added.first->second.place.type;
      WEFT_REQUIRE(type == place.type, "state: tensor '", name, "' is ", type.ToString(),
                   " on some ranks and ", place.type.ToString(), " on others");
    }
  }
  return table;
}

}  // namespace weft
