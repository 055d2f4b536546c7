#ifndef WEFT_RUNTIME_COMM_MPI_COMMUNICATOR_H_
#define WEFT_RUNTIME_COMM_MPI_COMMUNICATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/mpi/hub.h"
#include "runtime/comm/worker_pool.h"

namespace weft {

// The `mpi` backend: ranks are processes that mpirun or srun has started, one rank each.
//
// Matches members by creation order through `hub`; does not wait for them. `ranks` are ascending world ranks,
// this one among them. `ledger` may be null; it and `workers` outlive the communicator and all of its work,
// and so does the MpiEnvironment.
//
// A failed operation leaves its output undefined. Where MPI can not be stopped, it may still write to the
// output until the end of the process; the memory is kept for that.
//
// Errors: as MpiHub::Join. Tensors that are not on the CPU: InvalidArgument from the call that gets them.
std::shared_ptr<Communicator> MakeMpiCommunicator(const std::shared_ptr<MpiHub>& hub, const std::string& name,
                                                  const std::vector<int>& ranks, Ledger* ledger,
                                                  WorkerPool* workers);

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_COMMUNICATOR_H_
