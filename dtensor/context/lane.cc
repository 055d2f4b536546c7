#include "dtensor/context/lane.h"

namespace weft {

absl::string_view LaneName(Lane lane) {
  switch (lane) {
    case Lane::kInline:
      return "inline";
    case Lane::kParam:
      return "param";
    case Lane::kGrad:
      return "grad";
    case Lane::kReplica:
      return "replica";
  }
  return "?";
}

}  // namespace weft
