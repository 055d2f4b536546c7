#ifndef WEFT_RUNTIME_COMM_MPI_GROUP_COMM_H_
#define WEFT_RUNTIME_COMM_MPI_GROUP_COMM_H_

#include <mpi.h>

#include <chrono>

#include "runtime/comm/mpi/group.h"
#include "runtime/comm/mpi/wait.h"

namespace weft {

// The MPI communicator of `group`'s members. The first call makes it: all members call it then, at the same
// point of the same collective. So groups that only ever move little, or messages, cost MPI nothing.
//
// Cost:   the first time, MPI_Comm_create_group, on a thread of its own, since it can not be polled.
// Errors: as MpiWait, `awaited` being whom it waits for.
MPI_Comm GroupComm(MpiGroup& group, const MpiAwaited& awaited, std::chrono::milliseconds timeout);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_GROUP_COMM_H_
