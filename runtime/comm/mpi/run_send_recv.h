#ifndef WEFT_RUNTIME_COMM_MPI_RUN_SEND_RECV_H_
#define WEFT_RUNTIME_COMM_MPI_RUN_SEND_RECV_H_

#include "runtime/comm/collective_call.h"
#include "runtime/comm/mpi/group.h"

namespace weft {

// Takes this member through one batch of messages. A sender offers each message (and sends it along if it is
// at most kMpiCopiedBytes); the receiver compares the lengths, posts its receive and takes it; only then the
// data go out, under the receiver's tag: so nothing large ever arrives unexpected, and the sender knows
// that it was received.
//
// When it returns, MPI touches the messages' tensors no more; when it throws, what MPI still touches is kept
// alive.
//
// Threads: one at a time for each group.
// Errors:  as Communicator. Each ends the group.
void RunMpiSendRecv(MpiGroup& group, const SendRecvCall& call);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_RUN_SEND_RECV_H_
