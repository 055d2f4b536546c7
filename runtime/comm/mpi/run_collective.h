#ifndef WEFT_RUNTIME_COMM_MPI_RUN_COLLECTIVE_H_
#define WEFT_RUNTIME_COMM_MPI_RUN_COLLECTIVE_H_

#include "runtime/comm/collective_call.h"
#include "runtime/comm/mpi/group.h"

namespace weft {

// Takes this member through one collective of `group`: agrees with the peers on what it is, then moves the
// data. When it returns, MPI touches the call's tensors no more; when it throws, what MPI still touches is
// kept alive.
//
// Cost:    one packet to each peer; that is all if every input is at most kMpiCopiedBytes. Else MoveLarge.
// Threads: one at a time for each group.
// Errors:  as Communicator. Each ends the group.
void RunMpiCollective(MpiGroup& group, const CollectiveCall& call);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_RUN_COLLECTIVE_H_
