#ifndef WEFT_RUNTIME_LAUNCH_BACKEND_H_
#define WEFT_RUNTIME_LAUNCH_BACKEND_H_

#include "absl/strings/string_view.h"

namespace weft {

// Where a program's ranks run.
enum class Backend {
  kAuto,   // processes if a launcher has started this one, else threads
  kLocal,  // threads of this process
  kGloo,   // processes, this one of them: shared memory and TCP
  kMpi,    // processes, this one of them
  kNccl,   // GPUs, one per rank: as kAuto, and NCCL moves what is on them
};

// "auto", "local", "gloo", "mpi", "nccl".
// Errors: InvalidArgument that lists the names.
Backend ParseBackend(absl::string_view name);
absl::string_view BackendName(Backend backend);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_BACKEND_H_
