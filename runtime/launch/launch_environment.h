#ifndef WEFT_RUNTIME_LAUNCH_LAUNCH_ENVIRONMENT_H_
#define WEFT_RUNTIME_LAUNCH_LAUNCH_ENVIRONMENT_H_

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "runtime/store/tcp_store_options.h"

namespace weft {

// What a launcher has told this process about the job and its place in it.
struct LaunchEnvironment {
  std::string launcher;  // for messages: "RANK", "mpirun", "mpiexec", "srun"
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this machine
  int local_world_size = 1;

  // Where rank 0, or the launcher, keeps the job's store. No address, or no port: an MPI must say (its rank 0 tells).
  std::string master_addr;
  int master_port = 0;
  bool agent_store = false;  // the launcher keeps the store
  std::string token;
  std::optional<StoreTls> tls;
  std::chrono::milliseconds store_grace = std::chrono::seconds(60);  // TcpStoreOptions::grace
  std::chrono::milliseconds suspicion_time =
      std::chrono::seconds(5);  // of the store's connections: KeepaliveOf

  std::string run_id;
  int restart_count = 0;

  bool uses_mpi = false;  // the launcher is an MPI's own
  std::string gloo_host;
  std::string flight_dir;

  bool operator==(const LaunchEnvironment&) const = default;
  // A batch script may tell a host alone, where nobody can be found.
  bool has_address() const { return !master_addr.empty() && master_port > 0; }
};

// Reads `variables` (LauncherVariables), nullopt if no launcher has started this process.
//
// RANK comes first, whoever set it; then OpenMPI's, MPICH's and Slurm's variables. Under srun, which may set MPICH's
// too (--mpi=pmi2), the address is the first host of the step and the port follows from the numbers of job and step,
// unless MASTER_ADDR and MASTER_PORT are set. Under torchrun, whose own server has MASTER_PORT, the port is the one after it.
//
// Errors: InvalidArgument that names the variable, what it holds and what is expected.
std::optional<LaunchEnvironment> ParseLaunchEnvironment(const std::map<std::string, std::string>& variables);

// The first host of a Slurm list: "gpu[03-05,9],login1" gives "gpu03".
std::string FirstHost(const std::string& host_list);

}  // namespace weft

#endif  // WEFT_RUNTIME_LAUNCH_LAUNCH_ENVIRONMENT_H_
