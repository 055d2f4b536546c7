#ifndef WEFT_RUNTIME_COMM_LOCAL_RUN_SEND_RECV_H_
#define WEFT_RUNTIME_COMM_LOCAL_RUN_SEND_RECV_H_

#include "runtime/comm/collective_call.h"
#include "runtime/comm/local/group.h"

namespace weft {

// One member's batch of messages; the ends of each find each other through the group's mailboxes. The
// receiver copies out of the sender's memory; returns when all of the batch has been received, at both ends.
//
// Errors: as Communicator::SendRecv.
void RunLocalSendRecv(LocalGroup& group, int member, const SendRecvCall& call);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LOCAL_RUN_SEND_RECV_H_
