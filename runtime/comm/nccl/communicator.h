#ifndef WEFT_RUNTIME_COMM_NCCL_COMMUNICATOR_H_
#define WEFT_RUNTIME_COMM_NCCL_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl/hub.h"

namespace weft {

// The `nccl` backend: ranks have a GPU each, as processes or as threads of one. Collectives run on a stream
// of the group's own, between what is issued to their tensors' streams before and after; the host does not
// wait.
//
// What holds of the contract of Communicator, and what does not:
// - A blocking call returns when its operation is issued. What the tensors' streams do next waits for it; so
//   does the host when it reads a result. Barrier blocks the host. An error that comes later (a timeout, a
//   disagreement, a peer that has failed) is thrown by the next call on the group, by Barrier, and by a Work
//   that knows of it; what it was to bring is not there, and World::ThrowIfCutOff says so to whoever keeps
//   what has been read. The timeout counts from where the group's stream comes to the operation.
// - Reductions give the same bits on every member, and in every run with the same machines, NCCL and its
//   variables. Their order is NCCL's, not that of ranks: floating-point sums and products may differ from
//   other backends' in the last places. bf16 and f16 are rounded at every step, not once. kAvg of floats
//   multiplies before it adds, so that of equal terms it is their value but for rounding; that of i64 divides a sum that
//   may have wrapped. Of min and max, whether a nan wins is NCCL's affair. Integers and bool are otherwise
//   exact, as everywhere.
// - Members that disagree are told so with InvalidArgument when an operation of theirs is late
//   (NcclOptions::late_after): NCCL compares nothing. Where it ends a call that differs, as it may for counts
//   that differ by little, what arrives is not told to be wrong, until some later operation of the group is
//   late: then all calls that members remember are compared.
// - Members are connected for collectives when the group is made. Two members are connected for messages at the first one
//   between them, and the host waits there for the other. So all members of groups that overlap send and receive their
//   first messages in one order. A group of two need not: it is connected for messages when it is made.
// - The GPU's events say how long an operation took; the ledger asks for them when it is read.
//
// Matches members by creation order and waits for them: members make groups that they have in common in the
// same order. `ranks` are ascending world ranks, the hub's among them. `ledger` may be null; it outlives the
// communicator and all of its work. Tensors on the CPU go by way of the GPU, and their calls block.
//
// Errors: as MeetNccl. NCCL's own name the call and its last error.
std::shared_ptr<Communicator> MakeNcclCommunicator(std::shared_ptr<NcclHub> hub, const std::string& name,
                                                   const std::vector<int>& ranks, Ledger* ledger);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_NCCL_COMMUNICATOR_H_
