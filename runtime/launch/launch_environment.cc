#include "runtime/launch/launch_environment.h"

#include <cstdint>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/error.h"

namespace weft {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr int kLargest = std::numeric_limits<int>::max();

bool Has(const Variables& variables, const std::string& name) { return variables.count(name) != 0; }

std::string Text(const Variables& variables, const std::string& name, const std::string& otherwise = "") {
  const auto found = variables.find(name);
  return found == variables.end() ? otherwise : found->second;
}

int Number(const Variables& variables, const std::string& name, int least, int most) {
  const auto found = variables.find(name);
  if (found == variables.end()) {
    ThrowInvalidArgument("environment: ", name, " is not set: a launcher sets it, as weft_run does");
  }
  int value = 0;
  WEFT_REQUIRE(
      absl::SimpleAtoi(found->second, &value) && value >= least && value <= most, "environment: ", name,
      " is '", found->second, "', expected a whole number ",
      most == kLargest ? absl::StrCat("of at least ", least) : absl::StrCat("from ", least, " to ", most));
  return value;
}

int Number(const Variables& variables, const std::string& name, int least, int most, int otherwise) {
  return Has(variables, name) ? Number(variables, name, least, most) : otherwise;
}

// The names that one launcher uses.
struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  bool uses_mpi;
};

constexpr Names kNames[] = {
    {"RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_LOCAL_SIZE", false},
};

const Names* FindLauncher(const Variables& variables) {
  for (const Names& names : kNames) {
    // A shell inside an allocation has SLURM_NTASKS; only a step that srun has started has a number.
    if (names.launcher == std::string("srun") && !Has(variables, "SLURM_STEP_ID")) continue;
    if (Has(variables, names.rank) || (!names.uses_mpi && Has(variables, names.world_size))) return &names;
  }
  return nullptr;
}

// The tasks on node `node`, of Slurm's "4(x2),3".
int TasksOnNode(const std::string& text, int node) {
  size_t at = 0;
  while (at < text.size()) {
    size_t end = text.find(',', at);
    if (end == std::string::npos) end = text.size();
    const std::string part = text.substr(at, end - at);
    const size_t open = part.find("(x");
    int tasks = 0;
    int times = 1;
    bool ok = absl::SimpleAtoi(part.substr(0, open), &tasks);
    if (open != std::string::npos) {
      ok =
          ok && part.back() == ')' && absl::SimpleAtoi(part.substr(open + 2, part.size() - open - 3), &times);
    }
    WEFT_REQUIRE(ok && tasks > 0 && times > 0, "environment: SLURM_STEP_TASKS_PER_NODE is '", text,
                 "', expected such as 4(x2),3");
    if (node < times) return tasks;
    node -= times;
    at = end + 1;
  }
  return 1;
}

// Whether srun has started this rank. With --mpi=pmi2 it sets MPICH's variables beside its own. An mpiexec within a step of Slurm
// sets them too, but its ranks have other numbers than the step's tasks.
bool IsSlurmTask(const Variables& variables, const Names& names) {
  if (names.launcher == std::string("srun")) return true;
  return names.launcher == std::string("mpiexec") && Has(variables, "SLURM_STEP_ID") &&
         Text(variables, "SLURM_PROCID") == Text(variables, names.rank) &&
         Text(variables, "SLURM_NTASKS") == Text(variables, names.world_size);
}

// Of two jobs on one machine, and of two steps of one job, seldom the same; below the ports that systems give to clients.
int SlurmPort(int job, const std::string& step) {
  uint32_t number = 0;
  if (!absl::SimpleAtoi(step, &number)) number = 0;
  // 613 has no divisor in common with 10000, so that each of a job's first 10000 steps has a port of its own.
  return static_cast<int>(20000 + (job + int64_t{613} * number) % 10000);
}

void ReadSlurm(const Variables& variables, LaunchEnvironment* environment) {
  environment->launcher = "srun";
  environment->local_rank = Number(variables, "SLURM_LOCALID", 0, kLargest, environment->local_rank);
  const std::string tasks = Text(variables, "SLURM_STEP_TASKS_PER_NODE");
  if (!tasks.empty()) {
    environment->local_world_size = TasksOnNode(tasks, Number(variables, "SLURM_NODEID", 0, kLargest, 0));
  }
  const int job = Number(variables, "SLURM_JOB_ID", 0, kLargest, 0);
  if (environment->master_addr.empty()) {
    environment->master_addr = FirstHost(Text(variables, "SLURM_STEP_NODELIST"));
  }
  const std::string step = Text(variables, "SLURM_STEP_ID");
  if (environment->master_port == 0) environment->master_port = SlurmPort(job, step);
  environment->run_id = absl::StrCat("slurm.", job, ".", step);
}

}  // namespace

std::string FirstHost(const std::string& host_list) {
  const size_t end = host_list.find_first_of(",[");
  if (end == std::string::npos || host_list[end] == ',') return host_list.substr(0, end);
  const size_t number_end = host_list.find_first_of("],-", end);
  WEFT_REQUIRE(number_end != std::string::npos, "environment: the host list '", host_list,
               "' has a '[' that is not closed");
  const size_t close = host_list.find(']', number_end);
  WEFT_REQUIRE(close != std::string::npos, "environment: the host list '", host_list,
               "' has a '[' that is not closed");
  const size_t rest_end = host_list.find(',', close);
  return absl::StrCat(
      host_list.substr(0, end), host_list.substr(end + 1, number_end - end - 1),
      host_list.substr(close + 1, rest_end == std::string::npos ? rest_end : rest_end - close - 1));
}

std::optional<LaunchEnvironment> ParseLaunchEnvironment(const Variables& variables) {
  const Names* const names = FindLauncher(variables);
  if (names == nullptr) return std::nullopt;
  LaunchEnvironment environment;
  environment.launcher = names->launcher;
  environment.uses_mpi = names->uses_mpi;
  environment.world_size = Number(variables, names->world_size, 1, kLargest);
  environment.rank = Number(variables, names->rank, 0, environment.world_size - 1);
  environment.local_world_size =
      Number(variables, names->local_world_size, 1, environment.world_size, /*otherwise=*/1);
  environment.local_rank = Number(variables, names->local_rank, 0, kLargest, /*otherwise=*/0);
  environment.master_addr = Text(variables, "MASTER_ADDR");
  environment.master_port = Number(variables, "MASTER_PORT", 1, 65535, /*otherwise=*/0);
  environment.run_id = Text(variables, "TORCHELASTIC_RUN_ID", "weft");
  environment.restart_count = Number(variables, "TORCHELASTIC_RESTART_COUNT", 0, kLargest, /*otherwise=*/0);
  environment.agent_store = Text(variables, "WEFT_AGENT_STORE") == "1";
  environment.token = Text(variables, "WEFT_STORE_TOKEN");
  environment.tls = StoreTlsFrom(variables);
  environment.store_grace =
      std::chrono::milliseconds(Number(variables, "WEFT_STORE_GRACE_MS", 0, kLargest, /*otherwise=*/60'000));
  environment.suspicion_time =
      std::chrono::milliseconds(Number(variables, "WEFT_SUSPICION_MS", 10, kLargest, /*otherwise=*/5'000));
  environment.gloo_host = Text(variables, "WEFT_GLOO_HOST");
  environment.flight_dir = Text(variables, "WEFT_FLIGHT_DIR");
  if (IsSlurmTask(variables, *names)) ReadSlurm(variables, &environment);
  WEFT_REQUIRE(
      environment.local_rank < environment.local_world_size || !Has(variables, names->local_world_size),
      "environment: ", names->local_rank, " is ", environment.local_rank, ", but ", names->local_world_size,
      " ", environment.local_world_size);
  if (names->launcher == std::string("RANK")) {
    if (environment.master_addr.empty() && environment.world_size == 1) environment.master_addr = "127.0.0.1";
    WEFT_REQUIRE(!environment.master_addr.empty(),
                 "environment: RANK and WORLD_SIZE are set, MASTER_ADDR is not: it names the host of rank 0");
    if (environment.master_port == 0) environment.master_port = 29500;
    if (Text(variables, "TORCHELASTIC_USE_AGENT_STORE") == "True" && !environment.agent_store) {
      ++environment.master_port;
      WEFT_REQUIRE(environment.master_port <= 65535,
                   "environment: MASTER_PORT is 65535, and under torchrun the port after it must be free");
    }
  }
  return environment;
}

}  // namespace weft
