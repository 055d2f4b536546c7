#ifndef WEFT_RUNTIME_COMM_GLOO_COMMUNICATOR_H_
#define WEFT_RUNTIME_COMM_GLOO_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/gloo/hub.h"
#include "runtime/comm/worker_pool.h"

namespace weft {

// The `gloo` backend: ranks are processes, on one machine or on many. Pairs that share a host exchange bytes
// through shared memory, others through Gloo's TCP; results are the bits of `local`.
//
// Matches members by creation order and waits for them: members make groups that they have in common in the
// same order. `ranks` are ascending world ranks, the hub's among them. `ledger` may be null; it and `workers`
// outlive the communicator and all of its work.
//
// Errors: DeadlineExceeded naming the members that have not come within GlooOptions::connect_timeout;
//         InvalidArgument if a member gave the group another name; Aborted after GlooHub::AbortAll.
//         Tensors that are not on the CPU: InvalidArgument from the call that gets them.
std::shared_ptr<Communicator> MakeGlooCommunicator(const std::shared_ptr<GlooHub>& hub,
                                                   const std::string& name, const std::vector<int>& ranks,
                                                   Ledger* ledger, WorkerPool* workers);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_GLOO_COMMUNICATOR_H_
