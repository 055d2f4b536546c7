#ifndef WEFT_RUNTIME_COMM_NCCL_MEETING_H_
#define WEFT_RUNTIME_COMM_NCCL_MEETING_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/nccl/comm.h"
#include "runtime/comm/nccl/hub.h"

namespace weft {

// What a member has of a new group: a communicator of its members alone, ready, and the keys that are theirs. The messages of
// two members are connected, too.
struct NcclMeeting {
  std::string prefix;
  std::unique_ptr<NcclComm> comm;
};

// Finds the other members through the hub's store: the lowest rank leaves NCCL's unique id there. Waits for
// all of them.
//
// Errors: DeadlineExceeded naming the members that have not come within NcclOptions::connect_timeout;
//         InvalidArgument if a member gave the group another name, or has another NcclOptions::register_memory;
//         Aborted after NcclHub::AbortAll; what a member that was through before has ended the group with; NCCL's.
NcclMeeting MeetNccl(NcclHub& hub, const std::string& name, const std::vector<int>& ranks, int rank);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_MEETING_H_
