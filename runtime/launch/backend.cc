#include "runtime/launch/backend.h"

#include "runtime/base/error.h"

namespace weft {

absl::string_view BackendName(Backend backend) {
  switch (backend) {
    case Backend::kAuto:
      return "auto";
    case Backend::kLocal:
      return "local";
    case Backend::kGloo:
      return "gloo";
    case Backend::kMpi:
      return "mpi";
    case Backend::kNccl:
      break;
  }
  return "nccl";
}

Backend ParseBackend(absl::string_view name) {
  if (name == "auto") return Backend::kAuto;
  if (name == "local") return Backend::kLocal;
  if (name == "gloo") return Backend::kGloo;
  if (name == "mpi") return Backend::kMpi;
  if (name == "nccl") return Backend::kNccl;
  ThrowInvalidArgument("backend '", name,
                       "': expected auto, local (threads of this process), gloo, mpi or nccl");
}

}  // namespace weft
