#ifndef WEFT_RUNTIME_BASE_ENV_H_
#define WEFT_RUNTIME_BASE_ENV_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft {

// The environment that Weft's programs read, all of it. An unset variable and an empty one are the same: no
// value. The library itself reads what launchers set, in World::FromEnv alone; TMPDIR, where a file of its own has no
// folder; what is left to NCCL's choice, where it is to refuse it; and WEFT_NCCL_REGISTER.
//
// Threads: not while another thread calls setenv.

// Where the user stood when `bazel run` started the program, which Bazel runs in a folder of its own.
std::optional<std::string> BuildWorkingDirectory();

// The source tree that `bazel run` was started in.
std::optional<std::string> BuildWorkspaceDirectory();

// What launchers tell the processes that they start, by name: of the variables below those that have a value.
//
//   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT      weft_run, torchrun, Kubernetes
//   TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_USE_AGENT_STORE
//   OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}                        OpenMPI's mpirun
//   PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS                        MPICH's mpiexec
//   SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_STEP_ID SLURM_JOB_ID       srun
//   SLURM_STEP_NODELIST SLURM_STEP_TASKS_PER_NODE SLURM_NODEID
//   WEFT_AGENT_STORE     1: the launcher keeps the store at MASTER_ADDR:MASTER_PORT
//   WEFT_STORE_TOKEN     what the store's clients must show
//   WEFT_STORE_{CA,CERT,KEY,SERVER_NAME}   its mutual TLS: PEM files, and the name in the server's certificate
//   WEFT_STORE_GRACE_MS  how long a rank tries to come back to a store that restarts in place
//   WEFT_SUSPICION_MS    after how long a silence a peer of the store counts as gone
//   WEFT_SNAPSHOT_MEMORY where the launcher keeps memory for snapshots
//   WEFT_SPAWNED         the process whose SpawnRanks has started this one
//   WEFT_GLOO_HOST       the address or host name of this machine that gloo's sockets bind to
//   WEFT_FLIGHT_DIR      where a rank whose run fails writes its flight record
std::map<std::string, std::string> LauncherVariables();

// TMPDIR, or "/tmp".
std::string TemporaryFolder();

// Of what NCCL reads, by name, those that have a value: NCCL_ALGO and NCCL_PROTO, which it is to use, and NCCL_HOSTID, the
// machine that it takes this to be. Weft's own WEFT_NCCL_REGISTER is among them: 1 where memory is to be registered with NCCL.
std::map<std::string, std::string> NcclVariables();

// All variables as NAME=VALUE, in the system's order: what a launcher hands on to the programs it starts.
std::vector<std::string> WholeEnvironment();

}  // namespace weft

#endif  // WEFT_RUNTIME_BASE_ENV_H_
