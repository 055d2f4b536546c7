#include "mesh/placement.h"

#include "absl/strings/str_cat.h"

namespace weft {

std::string ToString(const Placement& placement) {
  if (const Shard* shard = std::get_if<Shard>(&placement)) return absl::StrCat("Shard(", shard->dim, ")");
  if (const Partial* partial = std::get_if<Partial>(&placement)) {
    return absl::StrCat("Partial(", ReduceOpName(partial->op), ")");
  }
  return "Replicate";
}

std::ostream& operator<<(std::ostream& out, const Placement& placement) { return out << ToString(placement); }

}  // namespace weft
