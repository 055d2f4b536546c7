#ifndef WEFT_TESTS_RUNTIME_COMM_MPI_PROGRAM_H_
#define WEFT_TESTS_RUNTIME_COMM_MPI_PROGRAM_H_

#include <functional>

#include "runtime/comm/mpi/environment.h"
#include "runtime/launch/world.h"

namespace weft {

// The MPI of this test program, which main makes.
MpiEnvironment& TestEnvironment();

// One rank of a world of MPI processes.
class MpiTestWorld final : public World {
 public:
  MpiTestWorld(int rank, int size, std::shared_ptr<MpiHub> hub);

  const std::shared_ptr<MpiHub>& hub() const { return hub_; }

 protected:
  std::shared_ptr<Communicator> MakeGroup(const std::string& name, const std::vector<int>& ranks) override;

 private:
  const std::shared_ptr<MpiHub> hub_;
};

// Called by all processes of the job, in the same order: runs `body` on the first `num_ranks` of them, and
// throws the first error, in time, in every process.
void RunMpi(int num_ranks, const std::function<void(MpiTestWorld&)>& body, const MpiOptions& options = {});

}  // namespace weft

#endif  // WEFT_TESTS_RUNTIME_COMM_MPI_PROGRAM_H_
