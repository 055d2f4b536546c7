#include "runtime/launch/backend.h"

#include "runtime/base/error.h"

namespace weft {

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
