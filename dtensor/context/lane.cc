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

int LanePriority(Lane lane) {
  switch (lane) {
    case Lane::kInline:
      return 2;
    case Lane::kParam:
      return 1;
    case Lane::kGrad:
    case Lane::kReplica:
      return 0;
  }
  return 0;
}

}  // namespace weft
