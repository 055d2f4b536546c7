#include "runtime/base/env.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace weft {
namespace {

std::optional<std::string> Read(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

constexpr const char* kLauncherVariables[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_NODEID",
    "WEFT_AGENT_STORE",
    "WEFT_SNAPSHOT_MEMORY",
    "WEFT_STORE_TOKEN",
    "WEFT_STORE_CA",
    "WEFT_STORE_CERT",
    "WEFT_STORE_KEY",
    "WEFT_STORE_SERVER_NAME",
    "WEFT_STORE_GRACE_MS",
    "WEFT_SUSPICION_MS",
    "WEFT_SPAWNED",
    "WEFT_GLOO_HOST",
    "WEFT_FLIGHT_DIR",
};

}  // namespace

std::optional<std::string> BuildWorkingDirectory() { return Read("BUILD_WORKING_DIRECTORY"); }

std::optional<std::string> BuildWorkspaceDirectory() { return Read("BUILD_WORKSPACE_DIRECTORY"); }

std::map<std::string, std::string> LauncherVariables() {
  std::map<std::string, std::string> variables;
  for (const char* const name : kLauncherVariables) {
    if (const std::optional<std::string> value = Read(name)) variables[name] = *value;
  }
  return variables;
}

std::string TemporaryFolder() { return Read("TMPDIR").value_or("/tmp"); }

std::map<std::string, std::string> NcclVariables() {
  std::map<std::string, std::string> choices;
  for (const char* const name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_HOSTID", "WEFT_NCCL_REGISTER"}) {
    if (std::optional<std::string> value = Read(name)) choices[name] = *std::move(value);
  }
  return choices;
}

std::vector<std::string> WholeEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  return variables;
}

}  // namespace weft
