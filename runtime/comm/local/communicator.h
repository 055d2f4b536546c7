#ifndef WEFT_RUNTIME_COMM_LOCAL_COMMUNICATOR_H_
#define WEFT_RUNTIME_COMM_LOCAL_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/local/hub.h"
#include "runtime/comm/worker_pool.h"

namespace weft {

// The `local` backend: ranks are threads of this process and read each other's memory, so nothing is sent,
// and nothing is copied more often than the collective itself asks.
//
// Matches members by creation order through `hub`; does not wait for them. `ranks` are ascending world ranks,
// `world_rank` among them. `ledger` may be null; it and `workers` outlive the communicator and all of its
// work.
//
// Errors: as LocalHub::Join. Tensors that are not on the CPU: InvalidArgument from the call that gets them.
std::shared_ptr<Communicator> MakeLocalCommunicator(const std::shared_ptr<LocalHub>& hub, int world_rank,
                                                    const std::string& name, const std::vector<int>& ranks,
                                                    Ledger* ledger, WorkerPool* workers);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_LOCAL_COMMUNICATOR_H_
