#ifndef WEFT_RUNTIME_COMM_MPI_ENVIRONMENT_H_
#define WEFT_RUNTIME_COMM_MPI_ENVIRONMENT_H_

#include <mpi.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/mpi/hub.h"
#include "runtime/comm/mpi/leftovers.h"
#include "runtime/comm/mpi/transport.h"

namespace weft {

// MPI in this process, from MPI_Init_thread to MPI_Finalize: one per process, which lives until main is through and may make
// any number of hubs, one after another. Without a launcher the job is this process alone.
//
// Lifetime: outlives all work of its hubs; they and their communicators may be let go of later, as models that outlive
//           the world do, and then call MPI no more. Its end waits for every other process of the job, as
//           MPI_Finalize does; but if a group of this process has failed, for 5 s at most, and then, or if an
//           operation could not be ended, it prints the first failure on stderr and ends the whole job with
//           MPI_Abort, exit code 1.
// Threads: made, used and ended by one.
class MpiEnvironment {
 public:
  // Errors: FailedPrecondition if this process has initialised MPI before, or if MPI does not grant
  //         MPI_THREAD_MULTIPLE. (Before it is initialised, MPI itself ends the process when something is
  //         wrong.)
  MpiEnvironment();
  ~MpiEnvironment();
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Among the processes of this machine.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }

  // Returns rank 0's `bytes` everywhere. Called by all processes.
  // Errors: DeadlineExceeded.
  std::string Broadcast(const std::string& bytes,
                        std::chrono::milliseconds timeout = std::chrono::minutes(10));

  // What ranks 0 to `num_ranks` - 1, of a world of as many, make their groups through. Called by those, in
  // the same order; waits for them, as MPI_Init does. Keeps the hub until the next one: all ranks have finished the last by
  // then, so it takes what they have said at its end, and gives back to MPI what it held.
  std::shared_ptr<MpiHub> NewHub(int num_ranks, const MpiOptions& options = {});

 private:
  void Await(MPI_Request& request, std::chrono::milliseconds timeout, const char* what);

  const std::shared_ptr<MpiLeftovers> leftovers_ = std::make_shared<MpiLeftovers>();
  std::vector<std::weak_ptr<MpiTransport>> transports_;  // of its hubs
  std::shared_ptr<MpiHub> last_hub_;
  MPI_Comm world_ = MPI_COMM_NULL;  // a duplicate
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
  bool quiet_ = true;  // no request of a collective on world_ was left behind
};

}  // namespace weft

#endif  // WEFT_RUNTIME_COMM_MPI_ENVIRONMENT_H_
