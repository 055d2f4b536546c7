// The processes of a job that is to be hurt.

#ifndef WEFT_TOOLS_FAULTS_CLUSTER_H_
#define WEFT_TOOLS_FAULTS_CLUSTER_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/faults/cables.h"
#include "tools/faults/fault_plan.h"
#include "tools/faults/job.h"
#include "tools/faults/store_process.h"

namespace weft {

struct ClusterOptions {
  std::string weft_run;
  std::string run_id;
  int num_nodes = 1;
  int ranks_per_node = 2;
  std::vector<std::string> node_flags = {};   // of weft_run, on all nodes
  std::string store_folder;                   // empty: one node, which keeps its store itself
  std::vector<std::string> store_flags = {};  // of `weft_run store`
  const Cables* cables = nullptr;             // one per node; null: all in this process's network
  std::string temporary_folder;               // TMPDIR of all processes
  std::vector<std::string> program;           // with its flags
  std::string log;                            // for what all say on stderr
};

// A job of one node or several, all of this machine, and of its store apart, if it has one. Nodes that end badly are started
// again, which a scheduler would do; the store too, after a while away. From the first one on SIGHUP, SIGINT and SIGTERM do not
// end this process but make Pump throw, so that nobody stays away.
//
// Lifetime: the destructor kills what runs.
class ChaosCluster {
 public:
  using Clock = ChaosJob::Clock;

  explicit ChaosCluster(const ClusterOptions& options);
  ~ChaosCluster();

  // Errors: those of ChaosJob::Start and StoreProcess::Start.
  void Start();

  // Reads what has come, waiting for something no longer than `wait`, and looks after the store and who is away.
  // Errors: FailedPrecondition, if the store has ended by itself; Cancelled after a signal.
  void Pump(std::chrono::milliseconds wait);
  // The same for so long.
  void PumpFor(double seconds);

  // Whether any node runs.
  bool IsRunning();
  // Whether all nodes have come to their end, with exit code 0.
  bool HasEndedWell();
  int exit_code();  // of a node that ended otherwise; 0: none did
  // Starts the nodes that have ended otherwise. Nothing if all run.
  void Revive();

  // weft_run's processes of nodes that run, as many as there are nodes at most.
  std::vector<pid_t> Guards();
  // Of them those that a fault of that kind hits: of kHosts all, of others one, of `node` if that runs.
  std::vector<pid_t> GuardsHit(Fault fault, int node);
  // These, and all that runs below them.
  std::vector<pid_t> FamiliesHit(Fault fault, int node);
  // Whether all nodes run, each with both of weft_run's processes.
  bool HasAllAgents();

  // One node that runs, `node` if it does, is away for so long, as kFreeze, kPause or kUnplug say; Pump brings it back. Who was away
  // before is back at once.
  void SendAway(int node, Fault how, std::chrono::milliseconds duration);
  Clock::time_point back_at() const { return back_at_; }  // of the last one; long ago, if there was none

  int64_t last_step() const;            // 0 before the first
  int64_t num_lines() const;            // steps that were written, repeated ones counted again
  Clock::time_point last_line() const;  // when the last came
  StoreProcess* store() { return store_ ? &*store_ : nullptr; }  // null: it has none apart

 private:
  void SetTemporaryFolder() const;  // of a child
  int NodeThatRuns(int node);       // -1: none
  void BringBack();

  const ClusterOptions options_;
  std::optional<StoreProcess> store_;  // it outlives the nodes
  std::vector<std::unique_ptr<ChaosJob>> nodes_;
  std::vector<pid_t> stopped_;
  int unplugged_ = -1;  // node; -1: none
  Clock::time_point back_at_;
};

}  // namespace weft

#endif  // WEFT_TOOLS_FAULTS_CLUSTER_H_
