#ifndef WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_ENVIRONMENT_H_
#define WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_ENVIRONMENT_H_

#include <chrono>
#include <string>
#include <vector>

#include "tools/launcher/rendezvous/generation.h"

namespace weft {

// What workers are told besides their ranks.
struct JobVariables {
  std::string run_id;
  int workers_per_node = 1;
  int max_restarts = 0;
  bool agent_store = false;  // the launcher of node 0 holds the job's store at MASTER_ADDR:MASTER_PORT
  std::string store_token;   // empty: none
  std::chrono::milliseconds store_grace{60'000};
  std::chrono::milliseconds suspicion_time{5'000};
  std::string snapshot_memory = {};  // WEFT_SNAPSHOT_MEMORY; empty: none
};

// The variables, NAME=VALUE, of the worker with `local_rank`: those of `inherited`, and torchrun's in their
// place (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK,
// ROLE_WORLD_SIZE, ROLE_NAME, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT,
// TORCHELASTIC_MAX_RESTARTS, TORCHELASTIC_RUN_ID; TORCHELASTIC_ERROR_FILE if one is given), WEFT_AGENT_STORE=1, WEFT_STORE_TOKEN,
// WEFT_STORE_GRACE_MS, WEFT_SUSPICION_MS and WEFT_SNAPSHOT_MEMORY where they apply,
// and OMP_NUM_THREADS=1 if it is not set and the node has several workers.
std::vector<std::string> WorkerEnvironment(const std::vector<std::string>& inherited, const JobVariables& job,
                                           const Assignment& assignment, int local_rank,
                                           const std::string& error_file = "");

// The value of a variable in such a list; empty if it is not there.
std::string ValueOf(const std::vector<std::string>& variables, const std::string& name);

}  // namespace weft

#endif  // WEFT_TOOLS_LAUNCHER_WORKERS_WORKER_ENVIRONMENT_H_
