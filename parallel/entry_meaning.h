// What an entry of a plan means for a model: a style's rules, and modules or parameters.

#ifndef WEFT_PARALLEL_ENTRY_MEANING_H_
#define WEFT_PARALLEL_ENTRY_MEANING_H_

#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "parallel/model_tree.h"
#include "parallel/plan.h"
#include "parallel/style.h"

namespace weft {

struct EntryMeaning {
  const StyleRules* rules = nullptr;
  ModelTree::Matches matches = {};
};

// Errors: InvalidArgument naming the entry: as CheckStyle; a path that matches no module or parameter (with the nearest
//         that exists); one that names a parameter, for a style that is for modules.
EntryMeaning MeaningOf(const PlanEntry& entry, const ModelTree& tree);

// Adds a style without an axis to those that reach a module or parameter: a later entry's fields replace those of an earlier one.
void MergeInto(const Style& style, std::vector<Style>* styles);

// How errors name an entry: "plan entry "blocks.*": FullyShard(dp)".
std::string Where(const PlanEntry& entry);

// Errors: InvalidArgument naming the entry, if its style has an axis that the mesh lacks.
void CheckAxis(const PlanEntry& entry, const DeviceMesh& mesh);

}  // namespace weft

#endif  // WEFT_PARALLEL_ENTRY_MEANING_H_
