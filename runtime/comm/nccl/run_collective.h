#ifndef WEFT_RUNTIME_COMM_NCCL_RUN_COLLECTIVE_H_
#define WEFT_RUNTIME_COMM_NCCL_RUN_COLLECTIVE_H_

#include "absl/types/span.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl/comm.h"

namespace weft {

// One member of a group as NCCL sees it, and the stream that its operations go to.
struct NcclMember {
  const NcclComm& comm;
  cudaStream_t stream = nullptr;
  int rank = 0;
  int size = 1;
};

// Issues the NCCL calls of one member's part in a collective, or in a list of them, in one group: equal counts by NCCL's own call,
// others by one broadcast, reduction, or pair of send and receive a piece. Reductions are of the tensors'
// dtype, which need not be the descriptor's. A barrier reduces `token`, a byte.
// Errors: NCCL's.
void IssueNcclCollectives(const NcclMember& member, absl::Span<const CollectiveCall> calls,
                          const Tensor& token);

// The same of a batch of messages.
void IssueNcclSendRecv(const NcclMember& member, absl::Span<const Message> sends,
                       absl::Span<const Message> receives);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_RUN_COLLECTIVE_H_
