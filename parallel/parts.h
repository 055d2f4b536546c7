// What a plan's On entries mean for a model's tree.

#ifndef WEFT_PARALLEL_PARTS_H_
#define WEFT_PARALLEL_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "dtensor/nn/module.h"
#include "mesh/device_mesh.h"
#include "parallel/entry_meaning.h"
#include "parallel/model_tree.h"
#include "parallel/plan.h"

namespace weft {

// Some of a model's ranks, which have a part of it.
struct ResolvedPart {
  int64_t first = 0;  // the indices along the axis
  int64_t count = 0;
  DeviceMesh mesh = {};

  bool Has(int64_t index) const { return index >= first && index < first + count; }
  bool operator==(const ResolvedPart&) const = default;
};

// All of a model's parts, in order of their indices.
struct ResolvedParts {
  int axis = 0;
  std::vector<ResolvedPart> parts = {};

  // The part that has an index along the axis.
  int PartAt(int64_t index) const;
  // "gpus 0 to 3".
  std::string NameOf(int part, const DeviceMesh& mesh) const;
  bool operator==(const ResolvedParts&) const = default;
};

// Which module lies where.
struct PartDivision {
  ResolvedParts parts = {};
  std::vector<int> module_parts = {};    // of each module; -1: on the whole mesh
  std::vector<ModulePlace> places = {};  // likewise
  std::vector<DeviceMesh> meshes = {};   // likewise: what its styles' axes are of
};

// An entry that places modules, and which.
struct PartEntry {
  const PlanEntry* entry = nullptr;
  const ModelTree::Matches* matches = nullptr;
};

// Errors: InvalidArgument that names the entry or the parameter: for entries of several axes, a range outside of the axis, parts
//         that overlap and are not equal, an axis of a part's mesh that the model's has, an entry for the model itself, a
//         module placed otherwise than one around it, an index that no part has, a part without parameters, a parameter or
//         buffer in no part, and one that is tied to a parameter of another part.
PartDivision DivideIntoParts(const ModelTree& tree, const DeviceMesh& mesh,
                             absl::Span<const PartEntry> entries);

// What entries with an axis that reach below mean where they name modules that lie on the whole mesh: the parts below
// that have the axis, but for those that another entry of the same style and axis names, or a module between. `meanings`:
// of each entry.
// Errors: InvalidArgument naming the entry, if no part below has the axis.
void NamePartsBelow(const ModelTree& tree, const Plan& plan, const PartDivision& division,
                    std::vector<EntryMeaning>* meanings);

}  // namespace weft

#endif  // WEFT_PARALLEL_PARTS_H_
