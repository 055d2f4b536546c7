#ifndef WEFT_RUNTIME_COMM_LOCAL_RUN_COLLECTIVE_H_
#define WEFT_RUNTIME_COMM_LOCAL_RUN_COLLECTIVE_H_

#include "runtime/comm/collective_call.h"
#include "runtime/comm/local/group.h"

namespace weft {

// Takes `member` through one collective of `group`: agrees with the peers on what it is, then does this
// member's share by reading and writing the peers' memory. When it returns, no peer touches the call's
// tensors any more.
//
// Cost:    barriers: one if every member's input is at most kLocalCopiedBytes, else two.
// Threads: one at a time for each member.
// Errors:  as Communicator. Each ends the group.
void RunLocalCollective(LocalGroup& group, int member, const CollectiveCall& call);

// The same for a list of all-reduces, all-gathers or reduce-scatters of one dtype: agreed on once, then part by
// part.
// Cost:    two barriers.
void RunLocalCollectives(LocalGroup& group, int member, const CollectiveDescriptor& list,
                         absl::Span<const CollectiveCall> calls);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LOCAL_RUN_COLLECTIVE_H_
