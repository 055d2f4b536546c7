#ifndef WEFT_RUNTIME_COMM_GLOO_RUN_SEND_RECV_H_
#define WEFT_RUNTIME_COMM_GLOO_RUN_SEND_RECV_H_

#include "runtime/comm/collective_call.h"
#include "runtime/comm/gloo/group.h"

namespace weft {

// Takes this member through a batch of messages. For each, the sender tells the receiver how much it has, the
// receiver tells the sender how much it expects, and the bytes follow at once. A send is through when its
// receiver has asked for it.
//
// Errors: as Communicator::SendRecv. Each ends the group. PeerLost.
void RunGlooSendRecv(GlooGroup& group, const SendRecvCall& call);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_RUN_SEND_RECV_H_
