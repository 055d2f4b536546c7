#ifndef WEFT_RUNTIME_COMM_GLOO_RUN_COLLECTIVE_H_
#define WEFT_RUNTIME_COMM_GLOO_RUN_COLLECTIVE_H_

#include "runtime/comm/gloo/collective_pieces.h"
#include "runtime/comm/gloo/group.h"

namespace weft {

// Takes this member through one collective of `group`. Every member sends a header to every other one, with
// the data behind it, and none returns before it has agreed with all headers. When it returns, the call's
// tensors are the caller's again.
//
// Cost:    messages straight between pairs; steps: one; two for an all-reduce that is not small (everybody
//          reduces a piece) and for a large broadcast (everybody passes a piece on). A reduction works on
//          parts as they come, by memory in the very place they come to.
// Errors:  as Communicator. Each ends the group. PeerLost.
void RunGlooCollective(GlooGroup& group, const CollectiveCall& call);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_RUN_COLLECTIVE_H_
