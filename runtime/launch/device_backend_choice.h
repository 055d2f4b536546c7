#ifndef WEFT_RUNTIME_LAUNCH_DEVICE_BACKEND_CHOICE_H_
#define WEFT_RUNTIME_LAUNCH_DEVICE_BACKEND_CHOICE_H_

#include "runtime/comm/device_groups.h"
#include "runtime/launch/world.h"
#include "runtime/store/store.h"

namespace weft {

// True if ranks communicate by their devices' own library (NCCL): with the backend nccl; with auto if the
// program was built with it and every rank of the job has a device of its own.
//
// Errors: for the backend nccl, InvalidArgument on another device than cuda or where ranks share one;
//         FailedPrecondition if the program was built without it. With WorldOptions::deterministic FailedPrecondition,
//         naming the variable, where NCCL is left to choose in which order it sums.

// Of `num_ranks` ranks that are threads of this process.
bool ThreadsUseDeviceGroups(const WorldOptions& options, int num_ranks);

// Of a job of processes, called by all of them; `allocator` is this one's. The same answer on all.
// Cost:   with auto and nccl, one key a rank, read by rank 0.
// Errors: the store's.
bool ProcessesUseDeviceGroups(const WorldOptions& options, Store& store, int rank, int size,
                              const Allocator& allocator);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_DEVICE_BACKEND_CHOICE_H_
