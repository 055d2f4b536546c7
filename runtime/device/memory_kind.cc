#include "runtime/device/memory_kind.h"

namespace weft {

absl::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kOther:
      return "other";
    case MemoryKind::kParam:
      return "param";
    case MemoryKind::kWholeParam:
      return "whole_param";
    case MemoryKind::kGrad:
      return "grad";
    case MemoryKind::kBucket:
      return "bucket";
    case MemoryKind::kState:
      return "state";
    case MemoryKind::kSaved:
      return "saved";
  }
  return "?";
}

}  // namespace weft
