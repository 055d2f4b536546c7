#include "tools/launcher/workers/worker_environment.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weft {

std::vector<std::string> WorkerEnvironment(const std::vector<std::string>& inherited, const JobVariables& job,
                                           const Assignment& assignment, int local_rank,
                                           const std::string& error_file) {
  const int rank = assignment.rank_offset + local_rank;
  std::map<std::string, std::string> own = {
      {"RANK", absl::StrCat(rank)},
      {"WORLD_SIZE", absl::StrCat(assignment.world_size)},
      {"LOCAL_RANK", absl::StrCat(local_rank)},
      {"LOCAL_WORLD_SIZE", absl::StrCat(job.workers_per_node)},
      {"GROUP_RANK", absl::StrCat(assignment.node_rank)},
      {"GROUP_WORLD_SIZE", absl::StrCat(assignment.num_nodes)},
      {"ROLE_NAME", "default"},
      {"ROLE_RANK", absl::StrCat(rank)},
      {"ROLE_WORLD_SIZE", absl::StrCat(assignment.world_size)},
      {"MASTER_ADDR", assignment.master_addr},
      {"MASTER_PORT", absl::StrCat(assignment.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", absl::StrCat(assignment.generation)},
      {"TORCHELASTIC_MAX_RESTARTS", absl::StrCat(job.max_restarts)},
      {"TORCHELASTIC_RUN_ID", job.run_id}};
  if (job.workers_per_node > 1 && ValueOf(inherited, "OMP_NUM_THREADS").empty()) own["OMP_NUM_THREADS"] = "1";
  if (!error_file.empty()) own["TORCHELASTIC_ERROR_FILE"] = error_file;
  if (job.agent_store) {
    own["WEFT_AGENT_STORE"] = "1";
    own["WEFT_STORE_GRACE_MS"] = absl::StrCat(job.store_grace.count());
    own["WEFT_SUSPICION_MS"] = absl::StrCat(job.suspicion_time.count());
  }
  if (!job.snapshot_memory.empty()) own["WEFT_SNAPSHOT_MEMORY"] = job.snapshot_memory;
  if (!job.store_token.empty()) own["WEFT_STORE_TOKEN"] = job.store_token;

  std::vector<std::string> variables;
  for (const std::string& variable : inherited) {
    const std::string name = variable.substr(0, variable.find('='));
    // What another launcher above this one said of its own is not so here.
    const bool of_other_launcher = name == "TORCHELASTIC_USE_AGENT_STORE" || name == "WEFT_AGENT_STORE" ||
                                   name == "WEFT_SNAPSHOT_MEMORY" || name == "TORCHELASTIC_ERROR_FILE";
    if (own.count(name) == 0 && !of_other_launcher) variables.push_back(variable);
  }
  for (const auto& [name, value] : own) variables.push_back(absl::StrCat(name, "=", value));
  return variables;
}

std::string ValueOf(const std::vector<std::string>& variables, const std::string& name) {
  for (const std::string& variable : variables) {
    if (absl::StartsWith(variable, absl::StrCat(name, "="))) return variable.substr(name.size() + 1);
  }
  return "";
}

}  // namespace weft
